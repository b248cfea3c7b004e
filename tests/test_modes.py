"""The modes: the eight of the seed, and what a site makes of them."""

import pytest

from ofa.chat import Sampling
from ofa.config_schema import ModeChange
from ofa.errors import ConfigError, UnknownModel
from ofa.modes import SEED_MODES, Modes, with_changes

SEED_IDS = [
    "ofa-openfoam",
    "ofa-hpc",
    "ofa-code",
    "ofa-amrex",
    "ofa-marbles",
    "ofa-quantum-computing",
    "ofa-vasp",
    "ofa-reframe",
]


def changed(changes, everywhere=None):
    """Return the seed's modes with *changes*, by name."""
    modes = with_changes(SEED_MODES, changes, everywhere or Sampling())
    return {mode.name: mode for mode in modes}


def test_the_seeds_modes_are_on_offer():
    """Eight ids, in the order they are shown."""
    assert [mode.id for mode in Modes()] == SEED_IDS


def test_no_change_changes_nothing():
    """Without a site's word the rows stay as they are."""
    assert with_changes(SEED_MODES, {}) == SEED_MODES


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "OFA · Kestrel HPC"),
        ("prompt", "ours.txt"),
        ("collections", ("ours", "hpc")),
        ("collections", ()),
        ("label", "OURS"),
        ("lead_in", "Ours:"),
        ("hidden", True),
    ],
)
def test_a_change_changes_one_thing_of_one_mode(field, value):
    """All the rest is as built in; empty is a value."""
    modes = changed({"hpc": ModeChange(**{field: value})})

    before = {mode.name: mode for mode in SEED_MODES}
    assert getattr(modes["hpc"], field) == value
    assert {n: m for n, m in modes.items() if n != "hpc"} == {
        n: m for n, m in before.items() if n != "hpc"
    }


def test_a_modes_own_sampling_beats_the_sites_which_beats_the_rows():
    """Temperature by the mode, top_p by the site, top_k as built in."""
    modes = changed(
        {"hpc": ModeChange(temperature=0.7)}, Sampling(temperature=0.5, top_p=0.9)
    )

    assert modes["hpc"].sampling == Sampling(temperature=0.7, top_p=0.9, top_k=64)
    assert modes["vasp"].sampling == Sampling(temperature=0.5, top_p=0.9, top_k=64)


def test_zero_is_a_temperature():
    """Greedy is asked for by 0, which is not "unset"."""
    modes = changed({"hpc": ModeChange(temperature=0.0)})

    assert modes["hpc"].sampling.temperature == 0.0


def test_a_new_mode_needs_a_title_only():
    """Everything else follows from its name; it comes last."""
    modes = changed({"gas-dynamics": ModeChange(title="Gas")})

    new = modes["gas-dynamics"]
    assert list(modes)[-1] == "gas-dynamics"
    assert (new.id, new.title, new.prompt) == (
        "ofa-gas-dynamics",
        "Gas",
        "gas-dynamics.txt",
    )
    assert (new.label, new.collections) == ("GAS_DYNAMICS", ("gas-dynamics",))
    assert Modes(modes.values()).pick("ofa-gas-dynamics") == new


def test_a_mistyped_mode_is_no_new_one():
    """The nearest name is in the line, with its place."""
    change = ModeChange(hidden=True, where="site.toml:7")

    with pytest.raises(ConfigError) as caught:
        changed({"openfaom": change})
    assert str(caught.value) == (
        "site.toml:7: modes.openfaom: no such mode; did you mean openfoam? "
        "a new one needs a title"
    )


@pytest.mark.parametrize("name", ["", "Gas", "a b", "../x", "ofa-gas", "-a", "a" * 41])
def test_names_that_fit_no_id_are_refused(name):
    """A mode's name stands in URLs and file names."""
    with pytest.raises(ConfigError, match="a mode's name is"):
        changed({name: ModeChange(title="T")})


def test_hidden_modes_are_found_but_not_listed():
    """Hiding is for the picker; a script that names the mode still works."""
    modes = Modes(changed({"vasp": ModeChange(hidden=True)}).values())

    assert "ofa-vasp" not in [mode.id for mode in modes]
    assert modes.pick("vasp").hidden


def test_hiding_all_modes_is_refused():
    """A server without models helps nobody."""
    everything = {mode.name: ModeChange(hidden=True) for mode in SEED_MODES}

    with pytest.raises(ConfigError, match="all of them are hidden"):
        changed(everything)


def test_an_unknown_model_names_those_on_offer():
    """The client learns what to ask for."""
    with pytest.raises(UnknownModel, match="ofa-vasp") as caught:
        Modes().pick("gpt-4")
    assert caught.value.param == "model"
