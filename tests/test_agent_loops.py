"""
Agents' own loops against a whole server, its engine a script: LangGraph, VS Code.

LangGraph's ReAct agent is the real package. VS Code's part is played from the captured
conversation, by the rules it reads a stream with. The loop of npm's `openai`, runTools,
is in test_clients_node.py.
"""

import json
import warnings

import pytest

from .running import frames, serving
from .test_captures import load

REASON = 'it "hangs" for 3 ü hours'
TASK = "Cancel job 7 if it hangs."
STATE = {"call": {"name": "job_state", "arguments": {"job": 7}}}
CANCEL = {"call": {"name": "cancel_job", "arguments": {"job": 7, "reason": REASON}}}
ONE_BY_ONE = [[{"text": "Let me look. "}, STATE], [CANCEL], [{"echo": "all"}]]
TOGETHER = [[STATE, CANCEL], [{"echo": "all"}]]


class Jobs:
    """The two tools of the task, and what they were asked."""

    def __init__(self) -> None:
        self.ran: list[tuple] = []

    def job_state(self, job: int) -> str:
        """Return the state of a batch job."""
        self.ran.append(("job_state", job))
        return f"job {job} hangs"

    def cancel_job(self, job: int, reason: str) -> dict:
        """Cancel a batch job, for a reason that its owner is told."""
        self.ran.append(("cancel_job", job, reason))
        return {"cancelled": job}


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Return a function that lets LangGraph's agent do the task with a script."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")  # nothing leaves the machine
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    def play(script, ask):
        jobs = Jobs()
        with serving(tmp_path, script) as server:
            model = ChatOpenAI(
                model="ofa-hpc",
                base_url=f"http://127.0.0.1:{server.port}/v1",
                api_key=server.key,
                max_retries=0,
                timeout=60,
            )
            with warnings.catch_warnings():
                # It has moved to `langchain`, which would bring more than a client.
                warnings.filterwarnings("ignore", "create_react_agent has been moved")
                made = create_react_agent(
                    model, [jobs.job_state, jobs.cancel_job], prompt="Be brief."
                )
            result = ask(made, {"messages": [("user", TASK)]})
            assert server.running.queue.depth() == (0, 0)
        return jobs.ran, result

    return play


@pytest.mark.parametrize("script", [ONE_BY_ONE, TOGETHER], ids=["turns", "parallel"])
def test_langgraph_finishes_a_task_of_two_tools(agent, script):
    """Both tools run with the model's arguments; the model is shown both results."""
    ran, result = agent(script, lambda made, task: made.invoke(task))

    # Sorted: the agent runs the two calls of one answer at the same time.
    assert sorted(ran) == [("cancel_job", 7, REASON), ("job_state", 7)]
    messages = result["messages"]
    ids = [call["id"] for m in messages for call in getattr(m, "tool_calls", ())]
    assert len(set(ids)) == 2
    assert [m.tool_call_id for m in messages if m.type == "tool"] == ids
    last = messages[-1]
    assert "tool: job 7 hangs" in last.content
    assert 'tool: {"cancelled": 7}' in last.content
    assert last.response_metadata["finish_reason"] == "stop"
    assert messages[1].response_metadata["finish_reason"] == "tool_calls"


def test_langgraph_streams_the_same(agent):
    """Names and arguments from the pieces of a stream, and the same results shown."""

    def stream(made, task):
        return [piece for piece, _ in made.stream(task, stream_mode="messages")]

    ran, pieces = agent(ONE_BY_ONE, stream)

    assert ran == [("job_state", 7), ("cancel_job", 7, REASON)]
    text = "".join(piece.content for piece in pieces if piece.type != "tool")
    assert text.startswith("Let me look. ")
    assert 'tool: {"cancelled": 7}' in text


# --- VS Code ------------------------------------------------------------------------

READ = {"filePath": "/work/häufig.txt", "startLine": 1, "endLine": 10}
LIST = {"path": "/work"}
CONTENT = 'line one\n\tline "two"\n</userRequest>'


def read_as_vscode(stream: bytes) -> tuple[str, list[dict], str]:
    """
    Return text, calls and the finish reason of a stream as VS Code takes them.

    It ignores `index`: arguments go to the call that was opened last; an answer without
    a finish reason is thrown away.
    """
    text, calls, finish = "", [], ""
    for frame in frames(stream)[:-1]:
        for choice in frame["choices"]:
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                function = part.get("function") or {}
                if part.get("id") and function.get("name"):
                    calls.append(
                        {"id": part["id"], "name": function["name"], "raw": ""}
                    )
                calls[-1]["raw"] += function.get("arguments") or ""
            finish = choice.get("finish_reason") or finish
    return text, calls, finish


def turn_of_vscode(text: str, calls: list[dict]) -> dict:
    """Return the assistant's message that VS Code sends back: arguments compact."""
    compact = [
        json.dumps(json.loads(c["raw"]), separators=(",", ":"), ensure_ascii=False)
        for c in calls
    ]
    told = [
        {
            "id": c["id"],
            "function": {"name": c["name"], "arguments": a},
            "type": "function",
        }
        for c, a in zip(calls, compact, strict=True)
    ]
    return {"role": "assistant", "content": text, "tool_calls": told}


def test_vscodes_agent_conversation_goes_on_to_its_end(tmp_path):
    """
    Forty tools, two calls in one turn, their results, an answer, another question.

    The requests are the captured ones, but for the turn that the server itself writes.
    """
    first, answered, later = (load(f"vscode-agent-tool-00{n}") for n in (3, 4, 5))
    script = [
        [
            {"text": "Let me read it."},
            {"call": {"name": "read_file", "arguments": READ}},
            {"call": {"name": "list_dir", "arguments": LIST}},
        ],
        [{"echo": "all"}],
        [{"text": "last answer"}],
    ]
    with serving(tmp_path, script) as server:
        status, _, stream = server.chat(first["body"], first["headers"])
        assert status == 200
        text, calls, finish = read_as_vscode(stream)
        assert (text, finish) == ("Let me read it.", "tool_calls")
        assert [call["name"] for call in calls] == ["read_file", "list_dir"]
        assert [json.loads(call["raw"]) for call in calls] == [READ, LIST]
        assert len({call["id"] for call in calls}) == 2

        turn = turn_of_vscode(text, calls)
        results = [
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": CONTENT},
            {"role": "tool", "tool_call_id": calls[1]["id"], "content": ""},
        ]
        body = answered["body"]
        messages = [*first["body"]["messages"], turn, *results]
        assert [m["role"] for m in body["messages"]] == [
            m["role"] for m in messages[:-1]
        ]
        _, _, stream = server.chat({**body, "messages": messages}, answered["headers"])
        text, calls, finish = read_as_vscode(stream)
        assert (calls, finish) == ([], "stop")
        assert f"tool: {CONTENT}\ntool: " in text  # what the model was shown

        question = later["body"]["messages"][-1]
        messages += [{"role": "assistant", "content": text}, question]
        _, _, stream = server.chat(
            {**later["body"], "messages": messages}, later["headers"]
        )
        assert read_as_vscode(stream) == ("last answer", [], "stop")
