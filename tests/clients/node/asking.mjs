// What every program here shares: the facts that it is told (python/asking.py says what they are),
// and the report of a cell.

import assert from "node:assert/strict";

export const facts = JSON.parse(process.argv[2]);
export const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "London"] } },
  required: ["city"],
  additionalProperties: false,
};

/** Runs the check and prints whether the cell is right, with the fault if not. */
export async function cell(surface, way, check) {
  let fault = null;
  try {
    await check();
  } catch (error) {
    fault = error.stack ?? String(error);
  }
  console.log(JSON.stringify({ surface, way, fault }));
}

/** The error of that class that the call must raise. */
export async function refused(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof kind, String(error));
    return error;
  }
  assert.fail(`no ${kind.name}`);
}

/** All that a stream has. */
export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** A fetch that notes each status and calls `seen` behind the first answer. */
export function noting(statuses, seen) {
  return async (...request) => {
    const response = await fetch(...request);
    statuses.push(response.status);
    if (statuses.length === 1) seen();
    return response;
  };
}
