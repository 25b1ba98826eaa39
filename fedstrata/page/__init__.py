"""The page of a run: one document and one set of scripts, live from the GPS and afterwards as the report.

docs/page.md says what the document holds.
"""

from fedstrata.page.feed import Feed
from fedstrata.page.files import page_with
from fedstrata.page.relevance import relevance_part
from fedstrata.page.serve import PageApp

__all__ = ["Feed", "PageApp", "page_with", "relevance_part"]
