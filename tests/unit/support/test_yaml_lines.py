from __future__ import annotations

import pytest
from clusterctl.suite import catalogue
from clusterctl.support.errors import ConfigError


def test_lines_and_words_that_are_no_truth_values() -> None:
    document = catalogue.read("on: mpi\nchecks:\n  pairs:\n    - no\n    - true\n", "f")
    assert document.data == {"on": "mpi", "checks": {"pairs": ["no", True]}}
    assert document.where(("checks", "pairs", 1)) == "f, line 5"
    assert document.where(("checks", "pairs", "nothing", 3)) == "f, line 3"
    assert catalogue.read("", "f").data is None


@pytest.mark.parametrize(
    "text",
    ["a: b: c", "a: [1", "\ta: 1", "a: 1\na: 2", "? [1]\n: 2", "--- 1\n--- 2", "a: !!python/name:os.system", "a: \x01",
     "&a [*a]", "%", "- " * 100000],
    ids=["colon", "bracket", "tab", "twice", "key", "two", "tag", "control", "loop", "percent", "deep"],
)  # fmt: skip
def test_invalid_yaml_is_one_sentence_about_the_file(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\b") as caught:
        catalogue.read(text, "f")
    assert "\n" not in str(caught.value)


def test_aliases_of_aliases_end() -> None:
    rows = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        catalogue.read("\n".join(rows), "f")


def test_numbers_are_those_of_yaml_1_2_and_keys_stay_as_they_are_written() -> None:
    text = "010: 010\n1.50: 1e3\n~: 12:30\n<<: {a: 1}\nday: 2020-13-45\n"
    assert catalogue.read(text, "f").data == {
        "010": 10,
        "1.50": 1000.0,
        "~": "12:30",
        "<<": {"a": 1},
        "day": "2020-13-45",
    }


def test_a_duplicate_key_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        catalogue.read("checks:\n  pairs: 1\n  hello: 2\n  pairs: 3\n", "validation.yml")
    for words in ("validation.yml, line 4", "'pairs'", "remove one"):
        assert words in str(caught.value)
