"""Make a notebook of a page for new users: its prose, its files, its commands and its Python, in order.

python scripts/notebook.py docs/tutorial/own-data.md docs/tutorial/own-data.ipynb
"""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

BLOCK = re.compile(r"^(?:`(?P<file>[\w.]+)`:\n\n)?```(?P<language>\w*)\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def cell_of(block: re.Match[str]) -> Any:
    """Return a block as a cell. The cell writes the file, or runs the commands, that the block shows."""
    text = block["text"].rstrip("\n")
    if block["file"]:
        return new_code_cell(f"%%writefile {block['file']}\n{text}")
    if block["language"] == "sh":
        return new_code_cell(f"%%bash -e\n{text}")
    if block["language"] == "python":
        return new_code_cell(text)
    return new_markdown_cell(block[0].strip())


def notebook_of(page: str) -> Any:
    """Return the notebook of a page's text. Cells are numbered, so that the same page gives the same file."""
    cells, place = [], 0
    for block in BLOCK.finditer(page):
        cells += [new_markdown_cell(page[place : block.start()].strip()), cell_of(block)]
        place = block.end()
    cells.append(new_markdown_cell(page[place:].strip()))
    kept = [cell for cell in cells if cell["source"]]
    for number, cell in enumerate(kept):
        cell["id"] = f"cell-{number}"
    return new_notebook(cells=kept, metadata={"kernelspec": KERNEL})


if __name__ == "__main__":
    page, notebook = map(Path, sys.argv[1:])
    notebook.write_text(nbformat.writes(notebook_of(page.read_text("utf-8"))) + "\n", encoding="utf-8")
