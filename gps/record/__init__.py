"""The run record: the files and tables that a run leaves behind."""
