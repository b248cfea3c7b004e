// The `openai` package from npm.
import OpenAI from "openai";

import { apiKey, baseURL, described, main, refusal } from "./common.mjs";

const client = new OpenAI({ apiKey, baseURL, maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "hi" }];
const asked = { model: "ofa-hpc", messages };

function tool(name, run) {
  const parameters = {
    type: "object",
    properties: { path: { type: "string" } },
    required: ["path"],
  };
  const described = { name, description: `${name}, for a test`, parameters };
  return {
    type: "function",
    function: { ...described, parse: JSON.parse, function: run },
  };
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  const one = await client.models.retrieve("ofa-hpc");
  return { ids, one };
}

async function whole() {
  const { data, response } = await client.chat.completions.create(asked).withResponse();
  return { completion: data, rag: response.headers.get("x-ofa-rag") };
}

async function streamed() {
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return { chunks };
}

/** Both ways through the helper that runs tools until the model is content. */
async function tools() {
  const ran = [];
  const read = tool("read_note", ({ path }) => {
    ran.push(["read_note", path]);
    return `text of ${path}`;
  });
  const count = tool("count_words", ({ path }) => {
    ran.push(["count_words", path]);
    return { words: 3 };
  });
  const runner = client.chat.completions.runTools({
    ...asked,
    stream: process.env.OFA_STREAM === "1",
    tools: [read, count],
  });
  const content = await runner.finalContent();
  return { ran, content, messages: runner.messages };
}

/** Leave in mid-stream, stay alive, and ask again until the one place is free. */
async function abort() {
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  const seen = [];
  for await (const chunk of stream) {
    const text = chunk.choices[0].delta.content;
    if (!text) continue;
    seen.push(text);
    const full = await refusal(() => client.chat.completions.create(asked));
    stream.controller.abort();
    return { seen, full, ...(await untilAnswered(performance.now())) };
  }
  throw new Error("the stream ended by itself");
}

async function untilAnswered(since) {
  for (;;) {
    try {
      const got = await client.chat.completions.create(asked);
      const freed_s = (performance.now() - since) / 1000;
      return { content: got.choices[0].message.content, freed_s };
    } catch (error) {
      if (error.status !== 429) throw error;
      await new Promise((done) => setTimeout(done, 20));
    }
  }
}

async function midway() {
  const seen = [];
  try {
    const stream = await client.chat.completions.create({ ...asked, stream: true });
    for await (const chunk of stream) seen.push(chunk.choices[0]);
  } catch (error) {
    return { seen, error: described(error) };
  }
  return { seen, error: null };
}

const refused = () => refusal(() => client.chat.completions.create(asked));

const unknown = () =>
  refusal(() => client.chat.completions.create({ ...asked, model: "gpt-5" }));

const invalid = () =>
  refusal(() => client.chat.completions.create({ ...asked, temperature: 9 }));

/** As many streams at once as asked for, each with a word of its own. */
async function together() {
  const words = Array.from({ length: 16 }, (_, n) => `CANARY-${n}-END`);
  const answers = await Promise.all(words.map(said));
  return { words, answers };
}

async function said(word) {
  const stream = client.chat.completions.stream({
    model: "ofa-hpc",
    messages: [{ role: "user", content: word }],
  });
  return stream.finalContent();
}

await main({
  models, whole, streamed, tools, abort, midway, refused, unknown, invalid, together,
});
