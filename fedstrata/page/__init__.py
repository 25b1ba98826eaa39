"""The page of a run: the same document and scripts for the live page of the GPS and for the later report.

docs/page.md describes the document.
"""

from fedstrata.page.feed import Feed
from fedstrata.page.files import page_with
from fedstrata.page.relevance import relevance_part
from fedstrata.page.serve import PageApp

__all__ = ["Feed", "PageApp", "page_with", "relevance_part"]
