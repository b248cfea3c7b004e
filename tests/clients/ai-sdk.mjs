// The AI SDK with its provider for compatible servers: what OpenCode and Cline stand on.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { apiKey, baseURL, described, main, refusal } from "./common.mjs";

const ofa = createOpenAICompatible({ name: "ofa", baseURL, apiKey, includeUsage: true });
const asked = { model: ofa("ofa-hpc"), prompt: "hi", maxRetries: 0 };
const inputSchema = z.object({ path: z.string() });

/** Return the tools of the tests and the list of what they were run with. */
function toolbox() {
  const ran = [];
  const named = (name, run) =>
    tool({
      description: `${name}, for a test`,
      inputSchema,
      execute: async ({ path }) => {
        ran.push([name, path]);
        return run(path);
      },
    });
  const tools = {
    read_note: named("read_note", (path) => `text of ${path}`),
    count_words: named("count_words", () => ({ words: 3 })),
  };
  return { tools, ran };
}

async function whole() {
  const got = await generateText(asked);
  return {
    text: got.text,
    reasoning: got.reasoningText ?? null,
    finishReason: got.finishReason,
    usage: got.usage,
    warnings: got.warnings ?? [],
  };
}

/** Read every part of a stream; errors come as parts, they are not thrown. */
async function read(options) {
  const failures = [];
  const stream = streamText({
    ...asked,
    ...options,
    onError: ({ error }) => failures.push(described(error)),
  });
  const parts = [];
  for await (const part of stream.fullStream) {
    parts.push(part.type === "error" ? { ...part, error: described(part.error) } : part);
  }
  return { parts, failures };
}

async function streamed() {
  const { parts, failures } = await read({});
  return { parts, failures };
}

async function tools() {
  const { tools, ran } = toolbox();
  const got = await generateText({ ...asked, tools, stopWhen: stepCountIs(5) });
  const steps = got.steps.map((step) => step.finishReason);
  return { text: got.text, steps, ran };
}

async function streamedTools() {
  const { tools, ran } = toolbox();
  const got = await read({ tools, stopWhen: stepCountIs(5) });
  return { ...got, ran };
}

/** A tool that is demanded by name: what instructor and structured output do. */
async function demanded() {
  const { tools, ran } = toolbox();
  const got = await generateText({
    ...asked,
    tools,
    toolChoice: { type: "tool", toolName: "read_note" },
  });
  return { finishReason: got.finishReason, ran };
}

const refused = () => refusal(() => generateText(asked));

const unknown = () =>
  refusal(() => generateText({ ...asked, model: ofa("gpt-5") }));

await main({ whole, streamed, tools, streamedTools, demanded, refused, unknown });
