// What the scripts of this folder share: where the server is, and how a case is run.
// A case returns what the client made of the server's answers; Python judges it.

export const baseURL = process.env.OFA_BASE_URL;
// From the environment: an argument could be read by any user of the machine.
export const apiKey = process.env.OFA_API_KEY;

/** Run the case that the command line names; print its result as one line of JSON. */
export async function main(cases) {
  const name = process.argv[2];
  const run = cases[name];
  if (!run) throw new Error(`no case ${name}; there are ${Object.keys(cases)}`);
  process.stdout.write(JSON.stringify(await run()) + "\n");
}

/** Return what `work` is refused with; a success is no refusal. */
export async function refusal(work) {
  try {
    await work();
  } catch (error) {
    return described(error);
  }
  throw new Error("was not refused");
}

/** Return what a client's error tells its user. */
export function described(error) {
  return {
    kind: error.constructor.name,
    status: error.status ?? error.statusCode ?? null,
    code: error.code ?? null,
    param: error.param ?? null,
    message: error.message ?? String(error),
  };
}
