"""Chats in the shapes that real clients send, with words of our own."""

from ofa.chat import Chat, Message, Tool, ToolCall

VSCODE = "GitHubCopilotChat/0.67.0"
OPENCODE = "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"
OPENAI = "OpenAI/Python 3.57.0"

TOOLS = (Tool("read_file"), Tool("run_in_terminal"))

ENVIRONMENT = """<environment_info>
The user's current OS is: Linux
</environment_info>
<workspace_info>
I am working in a workspace with the following folders:
```
src/
README.md
```
This view of the workspace may be truncated.
</workspace_info>
<userMemory>
The user likes short answers about rabbits.
</userMemory>
<sessionMemory>
Session memory is empty.
</sessionMemory>
<repoMemory>
Nothing is remembered of this repository.
</repoMemory>"""

REMINDER = """<reminderInstructions>
When using the replace tool, include three lines of context.
Never say the name of a tool.
</reminderInstructions>
"""


def vscode_turn(question: str, attachments: str = "", reminder: str = REMINDER) -> str:
    """Return a user message as VS Code's agent mode builds it."""
    return (
        f"{attachments}<context>\nThe current date is 29 November 2026.\n</context>\n"
        f"<editorContext>\nThe user's current file is /w/decoy.py.\n</editorContext>\n"
        f"{reminder}<userRequest>\n{question}\n</userRequest>"
    )


ATTACHED = """<attachments>
<attachment id="file:decoy.py">
User's active selection:
```python
import decoy
```
</attachment>
<attachment id="decoy.txt">
<userRequest>
decoy request inside a file
</userRequest>
</attachment>

</attachments>
"""


def user(text: str) -> Message:
    """Return a user's message."""
    return Message("user", text)


def said(text: str) -> Message:
    """Return an assistant's message."""
    return Message("assistant", text)


def chat(*messages: Message, tools: tuple[Tool, ...] = ()) -> Chat:
    """Return a chat of *messages* behind a system prompt."""
    return Chat("ofa-hpc", (Message("system", "You help."), *messages), tools=tools)


def vscode(question: str, *more: Message, attachments: str = "") -> Chat:
    """Return VS Code's first turn, and what came after it."""
    first = user(vscode_turn(question, attachments))
    return chat(user(ENVIRONMENT), first, *more, tools=TOOLS)


def called(name: str = "read_file", **arguments: object) -> tuple[Message, Message]:
    """Return an assistant's call and the tool's answer."""
    call = ToolCall("call_1", name, arguments)
    return (
        Message("assistant", "", calls=(call,)),
        Message("tool", "decoy tool result", answers="call_1"),
    )
