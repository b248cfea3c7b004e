"use strict";
// Everything from the server is put in as text, never as HTML: documents are not trusted.
// The key is in this tab alone, and goes in a header, never into a URL.
(() => {
  const EVERY_MS = 3000;
  const KEPT = "ofa-key";
  const at = (id) => document.getElementById(id);
  let key = sessionStorage.getItem(KEPT) || "";
  let timer = 0;
  let searching = null;

  function make(tag, text = "", className = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = className;
    return made;
  }

  // Only what has changed is put in anew: a selection stays, and nothing is read out twice.
  function renew(node, ...parts) {
    const made = make("div");
    made.append(...parts);
    if (made.textContent !== node.textContent) node.replaceChildren(...made.childNodes);
    return node;
  }

  // A message of the server's, with what it has in backticks as code.
  function message(node, text) {
    return renew(node, ...text.split("`").map((part, place) => (place % 2 ? make("code", part) : part)));
  }

  class Refused extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  async function ask(path, signal) {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    let answer;
    try {
      answer = await fetch(path, {
        headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The server does not answer. Is it running, and the tunnel open?");
    }
    const body = await answer.json().catch(() => null);
    if (answer.ok && body) return body;
    throw new Refused(answer.status, body?.error?.message || `The server said ${answer.status}.`);
  }

  // --- the door ----------------------------------------------------------------------

  function trouble(text) {
    message(at("trouble"), text);
    at("trouble").hidden = !text;
  }

  function lock(message) {
    clearTimeout(timer);
    searching?.abort();
    key = "";
    sessionStorage.removeItem(KEPT);
    at("inside").hidden = at("forget").hidden = true;
    at("door").hidden = false;
    for (const id of ["state", "model", "summary"]) at(id).textContent = "";
    for (const id of ["results", "mode", "now", "collections", "embedder"]) at(id).replaceChildren();
    trouble(message);
    at("key").focus();
  }

  at("door").addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = at("key").value.trim();
    at("key").value = "";
    if (!/^[\x21-\x7e]+$/.test(typed)) return trouble("This is no key: `ofa key show` prints it.");
    key = typed;
    look();
  });
  at("forget").addEventListener("click", () => lock(""));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !at("inside").hidden) look();
  });

  // --- what the server does ----------------------------------------------------------

  async function look() {
    clearTimeout(timer);
    const used = key;
    try {
      const told = await ask("v1/ofa/status");
      if (used !== key) return;
      if (key) sessionStorage.setItem(KEPT, key);
      trouble("");
      show(told);
    } catch (error) {
      if (used !== key) return;
      if (error.status === 401) return lock(key ? error.message : "");
      trouble(error.message);
      if (at("inside").hidden) at("door").hidden = false;
    }
    if (!at("inside").hidden && !document.hidden) timer = setTimeout(look, EVERY_MS);
  }

  function show(told) {
    const first = at("inside").hidden;
    at("door").hidden = true;
    at("inside").hidden = false;
    at("forget").hidden = !key;
    renew(at("state"), told.ready ? "ready" : told.reason || "not ready");
    at("state").className = told.ready ? "badge good" : "badge bad";
    renew(at("model"), told.engine.model);
    showModes(told.models);
    showNow(told);
    showDocuments(told.retrieval);
    if (first) at("question").focus();
  }

  function showModes(models) {
    const select = at("mode");
    if (select.options.length === models.length) return;
    select.replaceChildren(...models.map((model) => new Option(model.name, model.id)));
  }

  function showNow(told) {
    const { queue, engine } = told;
    const speed = (per_s) => (per_s ? `${number(Math.round(per_s * 10) / 10)} tokens/s` : "not measured yet");
    const rows = [
      ["Answering", `${queue.running} of ${queue.places.running}`],
      ["Waiting", `${queue.waiting} of ${queue.places.waiting}`],
      ["Reads", speed(engine.prefill_per_s)],
      ["Writes", speed(engine.decode_per_s)],
      ["Context", `${number(engine.context_tokens)} tokens`],
    ];
    renew(at("now"), ...rows.map(([name, value]) => {
      const row = make("div");
      row.append(make("dt", name), make("dd", value));
      return row;
    }));
  }

  function showDocuments(retrieval) {
    const problems = retrieval ? retrieval.problems : ["Retrieval is off on this server."];
    renew(at("problems"), ...problems.map((line) => message(make("li"), line)));
    at("problems").hidden = !problems.length;
    at("search").querySelector("button").disabled = !retrieval || Boolean(searching);
    const { name, state } = retrieval ? retrieval.embedder : {};
    renew(at("embedder"), retrieval ? `Embedding model: ${name || "none"} (${state})` : "");
    renew(at("collections"), ...(retrieval ? [table(retrieval.collections)] : []));
  }

  function table(collections) {
    const heads = ["Collection", "Passages", "Age", "Used by", "Health"];
    const made = make("table");
    const head = made.createTHead().insertRow();
    for (const name of heads) {
      const cell = make("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    const body = made.createTBody();
    for (const one of collections) {
      const row = body.insertRow();
      const name = make("th", one.layer === "private" ? `${one.name} (private)` : one.name);
      name.scope = "row";
      row.append(name);
      const users = one.models.map((id) => id.replace(/^ofa-/, "")).join(", ");
      const state = one.problem ? "bad" : one.passages ? "good" : "";
      const health = make("span", "", `badge ${state}`);
      message(health, one.problem || (one.passages ? "sound" : "not built"));
      const cells = [number(one.passages), age(one.age_s), users || "all", health];
      cells.forEach((content, place) => {
        const cell = row.insertCell();
        cell.dataset.head = heads[place + 1];
        cell.append(content);
        if (place === 0) cell.className = "number";
      });
    }
    return made;
  }

  function number(value) {
    return value.toLocaleString("en");
  }

  function age(seconds) {
    if (seconds === null) return "–";
    for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
      const count = Math.floor(seconds / size);
      if (count) return `${number(count)} ${name}${count > 1 ? "s" : ""}`;
    }
    return "under a minute";
  }

  // --- the search --------------------------------------------------------------------

  at("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    at("search").requestSubmit();
  });

  at("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    searching?.abort();
    const mine = (searching = new AbortController());
    const button = at("search").querySelector("button");
    button.disabled = true;
    at("summary").textContent = "Searching …";
    at("results").replaceChildren();
    const query = new URLSearchParams({ model: at("mode").value, q: at("question").value });
    if (at("previous").value.trim()) query.set("previous", at("previous").value);
    try {
      showReport(await ask(`v1/ofa/retrieve?${query}`, mine.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401) return lock(error.message);
      at("summary").textContent = error.message;
    } finally {
      if (searching === mine) {
        searching = null;
        button.disabled = false;
      }
    }
  });

  function showReport(report) {
    const many = report.injected === 1 ? "1 passage" : `${report.injected} passages`;
    const budget = report.budget ? ` of ${number(report.budget.tokens)}` : "";
    const why = because(report.reason);
    at("summary").textContent = report.injected
      ? `${many} would be injected: ${number(report.tokens)}${budget} tokens${why ? `, ${why}` : ""}`
      : `Nothing would be injected: ${why || "nothing matched"}`;
    const parts = [];
    if (report.text) {
      parts.push(make("h3", "As the model sees it, before the question"), shown(report.text));
    }
    for (const layer of report.layers) {
      const name = layer.layer === "private" ? "your own documents" : report.collections.join(", ");
      if (layer.hits.length) parts.push(make("h3", `Found in ${name}`), list(layer.hits));
      else if (layer.nearest.length) parts.push(make("h3", `Nearest in ${name}`), list(layer.nearest));
      else parts.push(make("h3", `Nothing in ${name}`), make("p", because(layer.reason) || "nothing matched", "section"));
    }
    at("results").replaceChildren(...parts);
  }

  function because(reason) {
    return reason.replace(/^\w+:? ?/, "");
  }

  function shown(text) {
    const pre = make("pre", text);
    pre.tabIndex = 0; // so that it can be scrolled by keys
    return pre;
  }

  function list(hits) {
    const made = make("ol");
    hits.forEach((hit) => {
      const item = make("li", "", "hit");
      const line = make("div");
      line.append(
        make("span", `${hit.collection}/${hit.path}`, "place"), " ",
        make("span", hit.injected ? "injected" : "not injected", hit.injected ? "badge good" : "badge"),
      );
      if (hit.pinned) line.append(" ", make("span", "pinned", "badge"));
      const more = make("details");
      more.append(make("summary", "Text"), shown(hit.text));
      item.append(
        line,
        make("div", hit.section || hit.title, "section"),
        make("div", scores(hit), "scores"),
        more,
      );
      made.append(item);
    });
    return made;
  }

  function scores(hit) {
    const cosine = hit.cosine ? ` · cosine ${hit.cosine.toFixed(2)}` : "";
    return `score ${hit.score.toFixed(2)}${cosine}`;
  }

  look();
})();
