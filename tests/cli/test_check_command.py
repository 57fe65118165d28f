"""The command `check`: the nodes and problems that it finds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from command_line import BAD, CYCLE, DEEP, FAILED, GOOD, answer, run, saved
from linking_cases import CASES, Case, model_of
from onnx import parser
from test_linking import REFUSED

import onnx_ops
from onnx_ops.cli.inspection import Linked, inspect


def test_check_in_json(good: Path) -> None:
    matrix = {"dtype": "float", "shape": [2, 3]}
    assert answer("check", good) == {
        "model": str(good),
        "ok": True,
        "opset": 21,
        "minimum_opset": 15,
        "linked": "absent",
        "linked_by": None,
        "kernels": {"registered": True, "reason": None, "library": None, "level": None},
        "problems": [],
        "nodes": [
            {
                "op": "HardshrinkBackward",
                "name": "gate",
                "outputs": ["o"],
                "place": "graph",
                "bare_kernel": None,
                "kernel": "aclnn_HardshrinkBackward_v1",
                "problems": [],
                "runs_on": "kernel",
                "uses": [
                    {
                        "inputs": {"grad_output": matrix, "self": matrix},
                        "attributes": {"lambd": 0.25},
                        "outputs": {"grad_input": matrix},
                    }
                ],
            }
        ],
    }


def test_check_as_text(good: Path) -> None:
    lines = run("check", good).stdout.splitlines()
    assert lines[0] == str(good)
    assert "HardshrinkBackward 'gate' -> o" in lines
    assert "  runs on  kernel aclnn_HardshrinkBackward_v1" in lines
    assert "  inputs   grad_output float (2, 3); self float (2, 3)" in lines
    assert lines[-1] == "no problems"


def test_check_finds_nodes_wherever_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep.onnx", DEEP)
    nodes = {node["place"]: node for node in answer("check", path)["nodes"]}
    assert {place: node["op"] for place, node in nodes.items()} == {
        "graph": "BinaryCrossEntropyWithLogitsBackward",
        "graph / If choice / yes": "HardshrinkBackward",
        "function own.Both": "HardshrinkBackward",
    }
    dtypes = [use["inputs"]["self"] for use in nodes["function own.Both"]["uses"]]
    assert dtypes == [{"dtype": "float", "shape": ["N"]}, {"dtype": "float16", "shape": [2]}]
    (use,) = nodes["graph"]["uses"]
    assert use["inputs"]["weight"] is None
    text = run("check", path).stdout
    assert "weight omitted" in text
    assert "self float (N,)" in text


def test_check_of_linked_and_inlined_models(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert "not linked by this version" in answer("check", good, "--linked", code=FAILED)["problems"][0]
    run("link", good, out)
    checked = answer("check", out, "--linked")
    assert checked["linked"] == "current"
    assert [(node["op"], node["place"]) for node in checked["nodes"]] == [("HardshrinkBackward", "graph")]
    run("link", "--inline", good, out)
    checked = answer("check", out, "--linked")
    assert (checked["linked"], checked["nodes"], checked["minimum_opset"]) == ("unneeded", [], None)


def test_check_of_a_model_linked_by_another_version(good: Path, tmp_path: Path) -> None:
    stale = onnx_ops.link(good)
    del stale.functions[0].node[-1]
    onnx.save_model(stale, good)
    assert answer("check", good)["linked"] == "stale"
    assert answer("check", good, "--linked", code=FAILED)["problems"]
    assert answer("check", good)["linked_by"] == onnx_ops.__version__
    assert f"yes, by version {onnx_ops.__version__}, but not as this version links it" in run("check", good).stdout
    run("link", good, good)
    assert answer("check", good)["linked"] == "current"


def test_check_finds_all_problems(tmp_path: Path) -> None:
    path = saved(tmp_path / "bad.onnx", BAD)
    checked = answer("check", path, code=FAILED)
    assert not checked["ok"]
    problems = {node["outputs"][0]: node["problems"] for node in checked["nodes"]}
    assert {output: len(texts) for output, texts in problems.items()} == {"q": 1, "r": 1, "s": 1, "z": 1}
    assert "no such op" in problems["q"][0]
    assert "attribute 'reduction' has type STRING" in problems["r"][0]
    assert "got 3 inputs, expected at most 2" in problems["s"][0]
    assert "input 'self' has shape (3,)" in problems["z"][0]
    assert all(node["runs_on"] is None for node in checked["nodes"])
    assert all("imports opset 14" in problem for problem in checked["problems"])
    lines = run("check", path, code=FAILED).stdout.splitlines()
    assert lines[-1] == f"{len(problems) + len(checked['problems'])} problems"


@pytest.mark.parametrize("name", REFUSED)
def test_what_link_refuses_is_a_problem(name: str) -> None:
    text, imports, *_ = REFUSED[name]
    model = model_of(text, imports or '"" : 21, "aclnn" : 1')
    with pytest.raises((onnx_ops.OpError, onnx_ops.LinkError)) as refusal:
        onnx_ops.link(model)
    inspection = inspect(model)
    assert not inspection.ok
    assert [*inspection.problems, *inspection.nodes[0].problems] == [str(refusal.value)]


def test_nodes_that_no_one_body_can_serve_are_a_problem() -> None:
    """No single node of these is wrong, and only the attempt to link them shows it."""
    model = model_of(
        """graph (float16[2] a, float[2] b, double[2] c) => (float[2] o) {
            o = own.Both (a, b)
            p = own.Both (b, c)
            q = own.Both (c, a)
        }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
        Both (x, y) => (z) { z = aclnn.HardshrinkBackward (x, y) }""",
        '"" : 21, "aclnn" : 1, "own" : 1',
    )
    with pytest.raises(onnx_ops.LinkError) as refusal:
        onnx_ops.link(model)
    assert inspect(model).problems == (str(refusal.value),)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_what_link_takes_has_no_problem(case: Case) -> None:
    before = case.model.SerializeToString()
    inspection = inspect(case.model)
    assert inspection.ok
    assert inspection.linked in (Linked.ABSENT, Linked.UNNEEDED)
    assert case.model.SerializeToString() == before
    linked = inspect(onnx_ops.link(case.model))
    assert linked.ok
    assert linked.linked in (Linked.CURRENT, Linked.UNNEEDED)


def test_check_of_a_model_that_onnx_refuses(tmp_path: Path) -> None:
    (problem,) = answer("check", saved(tmp_path / "cycle.onnx", CYCLE), code=FAILED)["problems"]
    assert problem == "the functions of the model are recursive: own.Round calls own.Round"


def test_check_of_a_node_without_outputs(tmp_path: Path) -> None:
    model = parser.parse_model(GOOD)
    del next(node for node in model.graph.node if node.domain == onnx_ops.DOMAIN).output[:]
    onnx.save_model(model, tmp_path / "m.onnx")
    checked = answer("check", tmp_path / "m.onnx", code=FAILED)
    assert any(
        "required output 'grad_input' has no name" in text for node in checked["nodes"] for text in node["problems"]
    )


def test_check_of_a_node_in_a_node_without_name_or_outputs(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph (bool q, float[2] g) => (float[2] o) {
            o = Neg (g)
            r = If (q) <
                then_branch = yes () => (float[2] s) { s = aclnn.HardshrinkBackward (g, g) },
                else_branch = no () => (float[2] t) { t = Identity (g) }>
        }"""
    model = parser.parse_model(text)
    branching = model.graph.node[1]
    del branching.output[:]
    for attribute in branching.attribute:
        del attribute.g.output[:]
    onnx.save_model(model, tmp_path / "m.onnx")
    (node,) = answer("check", tmp_path / "m.onnx")["nodes"]
    assert node["place"] == "graph / If / yes"


def test_check_of_another_version_of_the_domain(tmp_path: Path) -> None:
    (problem,) = answer("check", saved(tmp_path / "m.onnx", GOOD.replace('"aclnn" : 1', '"aclnn" : 2')), code=FAILED)[
        "problems"
    ]
    assert "imports version 2 of domain aclnn" in problem


def test_check_of_unknown_types(tmp_path: Path) -> None:
    text = GOOD.replace("o = aclnn", "u = com.example.Unknown (x) o = aclnn").replace("(g, x)\n    }", "(g, u)\n    }")
    text = text.replace('"aclnn" : 1', '"aclnn" : 1, "com.example" : 1').replace("[gate] ", "")
    path = saved(tmp_path / "m.onnx", text)
    assert answer("check", path)["nodes"][0]["uses"][0]["inputs"]["self"] == {"dtype": None, "shape": None}
    assert "self unknown" in run("check", path).stdout


def test_check_without_kernels(good: Path, no_kernels: str) -> None:
    checked = answer("check", good)
    assert checked["ok"]
    assert checked["kernels"] == {"registered": False, "reason": no_kernels, "library": None, "level": None}
    assert checked["nodes"][0]["runs_on"] == "portable body"
    text = run("check", good).stdout
    assert f"not registered: {no_kernels}" in text
    assert "runs on  function body" in text
