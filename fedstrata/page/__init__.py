"""The page of a run. The live page of the GPS and the later report use the same scripts, and show the run's data in the
same form (a document).

docs/page.md describes the document.
"""

from fedstrata.page.document import page_with
from fedstrata.page.feed import Feed
from fedstrata.page.relevance_drawing import relevance_part
from fedstrata.page.serve import PageApp

__all__ = ["Feed", "PageApp", "page_with", "relevance_part"]
