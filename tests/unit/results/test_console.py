"""The console, whatever width a terminal states."""

import pytest

from emulator.console.console_tables import make_console, plain_table


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("00", 80), ("1", 80), ("19", 80), ("20", 20), ("132", 132)])
def test_a_terminal_that_does_not_know_its_width_gets_a_table_of_the_usual_width(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    console = make_console()
    table = plain_table("link", numbers=["up"])
    table.add_row("device-gps", "1 kB")
    console.print(table)
    assert console.width == width
    assert capsys.readouterr().out.split() == ["link", "up", "device-gps", "1", "kB"]
