"""Output of other people's benchmarks, read by header: what is there, and what must never pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.results import Figure
from clusterctl.validation.checks import parsers
from clusterctl.validation.checks.parsers import UnreadableError, WrongAnswerError

DATA = Path(__file__).parents[3] / "data"
PARSERS = {"nccl_tests": parsers.parse_nccl_tests, "osu": parsers.parse_osu, "imb": parsers.parse_imb}
LOGS = sorted(path for kind in PARSERS for path in (DATA / kind).iterdir() if path.name != "README.md")


def log(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def of(figures: tuple[Figure, ...], quantity: str, size: int | None = None) -> Figure:
    (found,) = [one for one in figures if one.quantity == quantity and one.size_bytes == size]
    return found


def test_nccl_tests_by_its_table() -> None:
    figures = parsers.parse_nccl_tests("$ mpirun all_reduce_perf -b 8\n" + log("nccl_tests/allreduce_16_h100.txt"))
    bus = of(figures, "bus_bandwidth", 1 << 30)
    assert (bus.value, bus.unit, bus.operation, bus.backend, bus.better) == (
        pytest.approx(297.86e9),
        "B/s",
        "allreduce",
        "nccl",
        "higher",
    )
    assert of(figures, "algorithm_bandwidth", 1 << 30).value == pytest.approx(158.86e9)
    assert of(figures, "time", 8).value == pytest.approx(135.8e-6)
    assert len(figures) == 3 * 7


def test_nccl_tests_by_its_json() -> None:
    figures = parsers.parse_nccl_tests(log("nccl_tests/allreduce.json"))
    assert of(figures, "bus_bandwidth", 1 << 20).value == pytest.approx(5.16e9)
    assert of(figures, "bus_bandwidth", 64 << 20).value == pytest.approx(52.83e9)  # there is no out-of-place half
    assert {one.operation for one in figures} == {"allreduce"}


def test_two_operations_of_one_log_with_tags_and_noise() -> None:
    whole = log("nccl_tests/allreduce_16_h100.txt").removesuffix("\n")
    again = whole.replace("float     sum      -1", "float    none      -1")
    noise = "node1:77:77 [0] NCCL INFO Bootstrap: Using eth0"
    begin = "# Collective test starting:"
    text = f"{begin} all_reduce_perf\n{whole}\n{noise}\n{begin} all_gather_perf\n{again}"
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in text.splitlines())
    operations = [one.operation for one in parsers.parse_nccl_tests(tagged) if one.quantity == "time"]
    assert operations == ["allreduce"] * 7 + ["allgather"] * 7


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("9.68      0", "9.68      3", "3 values were wrong at 1 MiB"),
        ("values : 0 OK", "values : 2 FAILED", "2 lines with wrong values"),
    ],
)
def test_wrong_values_of_nccl_tests_are_no_figures(old: str, new: str, says: str) -> None:
    with pytest.raises(WrongAnswerError, match=says):
        parsers.parse_nccl_tests(log("nccl_tests/allreduce_16_h100.txt").replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"nwrong":0.000000},"in_place":{"time":207', '"nwrong":9},"in_place":{"time":207', "9 values were wrong"),
        ('"count":0', '"count":1', "1 results with wrong values"),
        ("203.200000", '"nan"', "'nan' is not a number"),
        ('"bus_bw":5.160000,', "", "has no bus_bw"),
        ('"results":[', '"results":7,"x":[', "none that nccl-tests writes"),
        ('"size":', '"size":"many","x":', "'many' is not a number"),
        ('"bus_bw":5.160000', '"bus_bw":1e300', "the bus bandwidth of allreduce is not a finite number"),
        ("{", '{"x":' + "[" * 100_000, "none that nccl-tests writes"),
    ],
    ids=lambda value: value[:30],
)
def test_json_that_is_wrong_is_no_figures(old: str, new: str, says: str) -> None:
    with pytest.raises(UnreadableError, match=says):
        parsers.parse_nccl_tests(log("nccl_tests/allreduce.json").replace(old, new, 1))


def test_newer_columns_are_found_by_their_names() -> None:
    text = """\
# Collective test starting: alltoall_perf
#       size         count      type   redop    root     time   algbw   busbw  #wrong  #bitdiff     time   algbw   busbw  #wrong  #bitdiff           timestamp
        1024           256     float    none      -1    10.50    0.10    0.09       0         0    11.00    0.09    0.08     N/A         0  2026-03-02 10:11:12
# Out of bounds values : 0 OK
# Bitwise mismatches   : 0 OK
"""  # noqa: E501 - the program's own width
    figures = parsers.parse_nccl_tests(text)
    assert (of(figures, "time", 1024).value, figures[0].operation) == (pytest.approx(10.5e-6), "alltoall")
    with pytest.raises(WrongAnswerError, match="bits differ"):
        parsers.parse_nccl_tests(text.replace("mismatches   : 0 OK", "mismatches   : 4 FAILED"))


def test_osu_by_its_titles_and_columns() -> None:
    time = of(parsers.parse_osu(log("osu/allreduce.txt")), "time", 1 << 20)
    assert (time.value, time.unit, time.operation) == (pytest.approx(3576.91e-6), "s", "allreduce")
    pair = parsers.parse_osu(log("osu/point_to_point.txt"))
    assert (of(pair, "latency", 1).value, of(pair, "latency", 1).unit) == (1.67, "us")
    assert of(pair, "bandwidth", 256 << 20).value == pytest.approx(12254.16e6)
    many = parsers.parse_osu(log("osu/multiple_pairs.txt"))
    assert of(many, "message_rate", 64).value == 5928951.59
    assert of(many, "bandwidth", 64).operation == "multiple_pairs"


def test_osu_s_full_columns_and_a_barrier() -> None:
    columns = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    full = f"# OSU MPI-CUDA Broadcast Latency Test v7.3\n{columns}\n"
    figure = of(parsers.parse_osu(full + "4   2.50   1.50   3.50   1000\n"), "time", 4)
    assert (figure.value, figure.operation, figure.backend) == (pytest.approx(2.5e-6), "broadcast", "mpi")
    barrier = "# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n            12.57\n"
    assert of(parsers.parse_osu(barrier), "time").value == pytest.approx(12.57e-6)
    with pytest.raises(UnreadableError, match="cut off"):
        parsers.parse_osu(full + "4   2.50   1.50\n")


def test_osu_s_own_comparison_of_values_is_heard() -> None:
    text = "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)        Validation\n4   2.50   Pass\n"
    assert of(parsers.parse_osu(text), "time", 4).value == pytest.approx(2.5e-6)
    with pytest.raises(WrongAnswerError, match="Validation: Fail"):
        parsers.parse_osu(text.replace("Pass", "Fail"))


def test_imb_s_own_comparison_of_values_is_heard() -> None:
    text = log("imb/pingpong.txt").replace("Mbytes/sec", "Mbytes/sec      defects")
    lines = [
        f"{line}         0.00" if line.split() and line.split()[0].isdigit() else line for line in text.splitlines()
    ]
    rows = [number for number, line in enumerate(lines) if line.endswith(" 0.00") and line.split()[0].isdigit()]
    assert of(parsers.parse_imb("\n".join(lines)), "latency", 1).value == 0.33
    lines[rows[1]] = lines[rows[1]].removesuffix("0.00") + "1.00"
    with pytest.raises(WrongAnswerError, match="1 defects"):
        parsers.parse_imb("\n".join(lines))


def test_imb_by_its_headers() -> None:
    pair = parsers.parse_imb(log("imb/pingpong.txt"))
    assert (of(pair, "latency", 1).value, of(pair, "bandwidth", 4 << 20).value) == (0.33, pytest.approx(10392.17e6))
    time = of(parsers.parse_imb(log("imb/alltoall.txt")), "time", 4 << 20)
    assert (time.value, time.operation) == (pytest.approx(1787.67e-6), "alltoall")  # the slowest of most processes


def test_a_mbyte_of_imb_is_what_its_own_figures_say() -> None:
    old = of(parsers.parse_imb(log("imb/pingpong_old.txt")), "bandwidth", 1 << 20)
    assert old.value == pytest.approx(3583.42 * 2**20)
    assert old.value == pytest.approx((1 << 20) / 279.06e-6, rel=0.01)


def test_imb_s_layout_of_one_line_a_figure() -> None:
    text = """\
# Benchmarking Allreduce
# #processes = 96
#Benchmarking        #procs       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
Allreduce       96                  4         1000       297.88       298.07       297.95
# All processes entering MPI_Finalize
"""
    assert of(parsers.parse_imb(text), "time", 4).value == pytest.approx(298.07e-6)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_half_a_log_is_no_result(path: Path) -> None:
    whole = path.read_text(encoding="utf-8")
    parse = PARSERS[path.parent.name]
    figures = parse(whole)
    for cut in range(0, len(whole) - 1, 97):
        try:
            some = parse(whole[:cut])
        except UnreadableError:
            continue
        # The OSU programs print no end mark; whole tables without what stands behind them are whole.
        ended = path.parent.name == "osu" or "MPI_Finalize" in whole[:cut] or "Out of bounds" in whole[:cut]
        assert ended, f"cut at {cut}"
        assert len(some) <= len(figures)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize(
    "text", ["", "nothing of the kind\n", "{}", "[1, 2]\n", "\x00\x01"], ids=["empty", "words", "json", "list", "bytes"]
)
def test_what_is_no_such_output_is_refused(parse: object, text: str) -> None:
    with pytest.raises(UnreadableError):
        parse(text)  # type: ignore[operator]
