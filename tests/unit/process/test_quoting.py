"""What peers say, as others repeat it."""

import os
import subprocess
import sys

from fedstrata.process.quoting import brief, quoted, shown


def test_what_was_said_is_quoted_with_escapes_and_cut() -> None:
    assert quoted("lps-7") == "'lps-7'"
    assert quoted("\x1b[2J") == r"'\x1b[2J'"
    assert quoted("x" * (4 << 20)) == f"'{'x' * 80}'"


def test_of_many_texts_four_are_quoted() -> None:
    assert quoted("a", "b") == "'a', 'b'"
    assert quoted(*"abcdef") == "'a', 'b', 'c', 'd', …"


def test_of_a_shown_many_sizes_eight_are_shown() -> None:
    assert shown(range(300_000), [3]) == "[0, 1, 2, 3, 4, 5, 6, 7], [3]"


def test_a_reason_is_one_line_that_commands_no_terminal() -> None:
    assert brief("too  late,\n\x1b[31mtry again") == "too late, [31mtry again"
    assert brief("x" * 300) == "x" * 300
    assert brief("x" * (4 << 20)) == "x" * 299 + "…"


def test_what_a_locale_has_no_letters_for_is_printed_as_escapes() -> None:
    program = "from fedstrata.process.logs import print_whatever_comes as p; p(); print('3 ± 1, \\udcff')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert said.stdout == rb"3 \xb1 1, \udcff" + b"\n"
