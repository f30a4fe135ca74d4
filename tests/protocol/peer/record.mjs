// Records what the peer's validator and its runtime say about generated schemas and patterns (see generate.py).
// node record.mjs ZOD IN OUT: ZOD is the entry file of zod 4.6.7, IN and OUT are JSON lines.
import fs from "node:fs";

const [entry, input, output] = process.argv.slice(2);
const z = await import(entry);

function judge(schema, value) {
  let found;
  try {
    found = schema.safeParse(value);
    if (found.success) return { value, ok: true, parsed: found.data };
    const issues = found.error.issues.map(({ path, code, message }) => ({ path, code, message }));
    return { value, ok: false, issues };
  } catch {
    return { value, stops: true };
  }
}

function recordSchema({ schema, values }) {
  let compiled;
  try {
    compiled = z.fromJSONSchema(schema);
  } catch {
    return { schema, loads: false };
  }
  return { schema, loads: true, cases: values.map((value) => judge(compiled, value)) };
}

function recordPattern({ pattern, texts }) {
  let compiled;
  try {
    compiled = new RegExp(pattern);
  } catch {
    return { pattern, valid: false };
  }
  return { pattern, valid: true, printed: String(compiled), matches: texts.filter((text) => compiled.test(text)) };
}

const lines = fs.readFileSync(input, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
const records = lines.map((line) => ("schema" in line ? recordSchema(line) : recordPattern(line)));
fs.writeFileSync(output, records.map((record) => JSON.stringify(record) + "\n").join(""));
