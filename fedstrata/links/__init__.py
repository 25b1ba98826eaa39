"""The links between parents and children: their rates over time, links that children share, and real transfers."""
