"""Hardware records of any content: doctor's rules end, odd values are notes, and no odd value is a finding."""

from __future__ import annotations

import pytest
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import (
    FORMS,
    Counter,
    Event,
    Hardware,
    HardwareLooks,
    HardwareReading,
    Value,
    form_of,
    has_form,
)
from hypothesis import given
from hypothesis import strategies as st

KINDS = ("h100-sxm", "dual-rail-roce")
PLAIN: dict[str, Value] = {"text": "word", "number": 3, "flag": True}
ODD: dict[str, tuple[Value, ...]] = {
    "text": (7, 0.5, False),
    "number": ("many", "", True, float("nan"), float("inf"), 2.0**80),
    "flag": ("yes", 1, ""),
}
VALUES = st.sampled_from([value for values in ODD.values() for value in values] + list(PLAIN.values())) | st.one_of(
    st.text(max_size=8), st.integers(-(2**70), 2**70), st.floats(), st.booleans()
)
COUNTS = st.sampled_from([0, 1, -1, 2**32, 2**64, 2**127]) | st.integers(-(2**128), 2**128)
SPANS = st.sampled_from([-1e9, 0.0, 5e-324, 1e-3, 60.0, 1e9, 1e300])
WORDS = st.sampled_from(
    ["", "gpu", "node", "rdma_port", "filesystem", "kernel log", "mlx5_0/1", "/", "xid 79"]
) | st.text(max_size=8)


def everything(kind: str) -> HardwareLooks:
    """Return the looks at a healthy machine, with a plain value for each reading that its kind does not have."""
    looks = rehearsal.healthy(kind, 1)
    more = tuple(
        HardwareReading(of, device, name, PLAIN[form])
        for (of, name), form in FORMS.items()
        if not looks.now.values(of, name)
        for device in looks.now.devices(of)[:2] or ("one", "two")
    )
    return HardwareLooks(
        now=looks.now.model_copy(update={"readings": looks.now.readings + more}), first=looks.first, past=()
    )


def beside_healthy(kind: str, odd: HardwareLooks) -> View:
    return rehearsal.view(kind, **dict.fromkeys(rehearsal.NODES, rehearsal.healthy(kind, 1)) | {"node3": odd})


@st.composite
def mutated(draw: st.DrawFn, look: Hardware) -> Hardware:
    """Change some readings, counters and events of a look, and its times."""
    readings = list(look.readings)
    for at in draw(st.lists(st.integers(0, len(readings) - 1), max_size=12)):
        one = readings[at]
        readings[at] = draw(
            VALUES.map(lambda value, one=one: one._replace(value=value))
            | WORDS.map(lambda word, one=one: one._replace(device=word))
            | WORDS.map(lambda word, one=one: one._replace(name=word))
            | WORDS.map(lambda word, one=one: one._replace(kind=word))
        )
    gone = draw(st.sets(st.integers(0, len(readings) - 1), max_size=8))
    counters = list(look.counters)
    for at in draw(st.lists(st.integers(0, max(0, len(counters) - 1)), max_size=12)):
        counters[at] = counters[at]._replace(value=draw(COUNTS))
    counters += draw(st.lists(st.builds(Counter, WORDS, WORDS, WORDS, COUNTS), max_size=3))
    events = draw(
        st.lists(
            st.builds(
                Event,
                st.floats(-1e12, 1e12),
                st.sampled_from(["xid", "sxid", "aer", "link", "io", "x"]),
                WORDS,
                WORDS,
                WORDS,
            ),
            max_size=3,
        )
    )
    return Hardware.model_validate(
        {
            **look.model_dump(),
            "time": look.time + draw(SPANS),
            "uptime_s": draw(SPANS),
            "boot_id": draw(st.sampled_from([look.boot_id, ""])),
            "readings": [one for at, one in enumerate(readings) if at not in gone],
            "counters": counters,
            "events": events,
        }
    )


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_record_of_any_content_ends_no_rule(kind: str, data: st.DataObject) -> None:
    looks = everything(kind)
    now = data.draw(mutated(looks.now))
    past = data.draw(st.lists(mutated(looks.now), max_size=1))
    view = beside_healthy(kind, HardwareLooks(now=now, first=looks.first, past=tuple(past)))
    registry.diagnose(view)
    registry.notes(view)


@pytest.mark.parametrize("kind", rehearsal.MACHINES)
def test_what_machines_tell_has_its_form(kind: str) -> None:
    told = rehearsal.healthy(kind, 1).now.readings
    assert [one for one in told if form_of(one.kind, one.name) is None] == []
    assert rehearsal.healthy(kind, 1).now.odd == ()


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_value_is_a_note_and_never_a_finding(kind: str) -> None:
    looks = rehearsal.healthy(kind, 1)
    first = {(one.kind, one.name): at for at, one in reversed(list(enumerate(looks.now.readings)))}
    for at in first.values():
        one = looks.now.readings[at]
        form = form_of(one.kind, one.name)
        assert form is not None
        value = ODD[form][at % len(ODD[form])]
        assert not has_form(value, form)
        readings = (*looks.now.readings[:at], one._replace(value=value), *looks.now.readings[at + 1 :])
        odd = HardwareLooks(now=looks.now.model_copy(update={"readings": readings}), first=looks.first)
        view = beside_healthy(kind, odd)
        assert registry.diagnose(view) == (), f"{one} with {value!r}"
        device = f" {one.device}" if one.device else ""
        note = f"Not looked at on node3: {one.kind}{device}: its {one.name} reads '{value!s:.40}'."
        assert note in registry.notes(view), f"{one} with {value!r}"
