"""The operator's page names the metrics that exist."""

from services.common.metrics import INSTRUMENTS
from tests.docs.pages import ROOT, Page, code_of

PAGE = Page(ROOT / "docs" / "operations.md")


def test_the_table_of_metrics_is_the_codes() -> None:
    rows = [row.cells for row in PAGE.rows() if row.header[0] == "metric"]
    shown = {
        code_of(name)[0]: (kind, tuple(code_of(attributes)), says) for name, kind, attributes, says in rows
    }
    assert shown == {
        name: (one.kind + (", seconds" if one.kind == "histogram" else ""), one.attributes, one.says)
        for name, one in INSTRUMENTS.items()
    }
