import pytest

from planner.errors import PlannerError
from planner.frontends import catalog


def test_names_aliases_case_and_underscores_find_the_same_file():
    path = catalog.find("chip", "h100-sxm")
    assert path is not None
    assert path.name == "h100-sxm.yaml"
    for spelling in ("h100", "H100", "h100_sxm", " H100-SXM5 "):
        assert catalog.find("chip", spelling) == path
    assert catalog.find("chip", "910b").stem == "ascend-910b2"
    assert catalog.find("cluster", "gb200-nvl72").stem == "b200-nvl72"
    assert catalog.find("chip", "dgx-h100") is None


def test_unknown_model_names_its_nearest(tmp_path):
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "ownmodel-70b.yaml").write_text("aliases: [Own_70B, om-70b]\nname: ownmodel-70b\n")
    folders = (tmp_path,)
    for spelling in ("ownmodel-70b", "OWN-70B", "om_70b"):
        assert catalog.find_model(spelling, folders) == folder / "ownmodel-70b.yaml"
    with pytest.raises(PlannerError) as caught:
        catalog.find_model("ownmodel-7b", folders)
    text = str(caught.value)
    assert text.startswith("Error: no model named 'ownmodel-7b'. Nearest: ownmodel-70b")
    assert "All: shardwright list models" in text
    assert text.endswith("[M01]")


def test_own_folders_hide_packaged_files_of_the_same_name(tmp_path):
    folder = tmp_path / "hardware_profiles" / "chips"
    folder.mkdir(parents=True)
    (folder / "h100-sxm.yaml").write_text("name: h100-sxm\n")
    (folder / "mine.yaml").write_text("name: mine\n")
    assert catalog.find("chip", "h100-sxm", (tmp_path,)) == folder / "h100-sxm.yaml"
    assert catalog.find("chip", "mine", (tmp_path,)) == folder / "mine.yaml"
    assert catalog.find("chip", "h100-sxm").parent != folder
    names = [entry.name for entry in catalog.entries("chip", (tmp_path,))]
    assert names == sorted(names)
    assert "a100-sxm-80gb" in names


def test_unknown_chip_says_where_it_was_asked_for():
    with pytest.raises(PlannerError) as caught:
        catalog.find_chip("h100sxm", asked="--cluster h100sxm:256")
    assert (
        str(caught.value)
        .splitlines()[0]
        .startswith("Error: no chip named 'h100sxm' in --cluster h100sxm:256. Nearest: h100-sxm")
    )
    assert "shardwright show h100-sxm > my.yaml" in str(caught.value)
