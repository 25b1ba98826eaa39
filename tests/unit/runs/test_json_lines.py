"""Lines of JSON are alone on standard output, whatever own code prints."""

import sys

import pytest
import typer

from emulator.commands.options import Output, with_groups
from emulator.console.json_lines import print_json

app = typer.Typer()


@app.command()
@with_groups
def tell(*, output: Output) -> None:
    print("from own code")
    sys.stdout.flush()
    if output.is_json:
        print_json({"event": "summary"})


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [([], "from own code\n", ""), (["--json"], '{"event": "summary"}\n', "from own code\n")],
    ids=["text", "json"],
)
def test_other_text_goes_to_standard_error(
    words: list[str], out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout
    app(words, standalone_mode=False)
    assert sys.stdout is before
    assert capsys.readouterr() == (out, err)
