// Writes the page from the description of the server. Text only ever becomes text nodes.

const METHODS = ["get", "post", "put", "patch", "delete"];

/** An element with attributes and children; strings become text. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A sentence with code in backticks, as nodes. */
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

/** What a reference points to, or the thing itself. */
function resolved(thing, api) {
  const path = thing?.$ref?.slice(2).split("/");
  return path ? path.reduce((found, key) => found[key], api) : thing ?? {};
}

/** A schema's type in a few words. */
function kind(schema, api) {
  if (schema.$ref) return kind(resolved(schema, api), api);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const options = schema.anyOf ?? schema.oneOf;
  if (options) {
    const kinds = options.filter((each) => each.type !== "null").map((each) => kind(each, api));
    return [...new Set(kinds)].join(" or ");
  }
  if (schema.type === "array") return `list of ${kind(schema.items ?? {}, api)}`;
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((each) => each !== "null");
    return types.map((type) => kind({ ...schema, type }, api)).join(" or ");
  }
  return schema.type ?? "any";
}

/** The fields of an object; those that must be there first. */
function fieldTable(schema, api) {
  const required = schema.required ?? [];
  const rows = Object.entries(schema.properties ?? {})
    .sort(([a], [b]) => required.includes(b) - required.includes(a))
    .map(([name, field]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, element("code", {}, name)),
        element("td", { class: "kind" }, kind(field, api)),
        element(
          "td",
          {},
          required.includes(name) ? element("span", { class: "required" }, "required ") : "",
          ...prose(field.description ?? resolved(field, api).description ?? ""),
        ),
      ),
    );
  return element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows)));
}

/** A word as a shell reads it. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The command that asks a route. */
function curl(method, path, operation, api) {
  const words = ["curl", "-N"];
  const wanted = operation.security ?? api.security ?? [];
  if (wanted.some((each) => "bearer" in each)) words.push("-H", '"Authorization: Bearer $KEY"');
  const content = operation.requestBody?.content?.["application/json"];
  if (content) words.push("-d", quoted(JSON.stringify(content.example ?? {})));
  if (method !== "get" && !content) words.push("-X", method.toUpperCase());
  words.push(/[{}]/.test(path) ? quoted(location.origin + path) : location.origin + path);
  return words.join(" ");
}

function example(command) {
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return element("div", { class: "example" }, element("pre", { tabindex: "0" }, command), copy);
}

function answers(operation, api) {
  const rows = Object.entries(operation.responses).map(([status, found]) => {
    const response = resolved(found, api);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, status),
      element("td", { class: "kind" }, Object.keys(response.content ?? {}).join(", ")),
      element("td", {}, ...prose(response.description)),
    );
  });
  const table = element("table", {}, element("tbody", {}, ...rows));
  return element(
    "details",
    {},
    element("summary", {}, "Answers and errors"),
    element("div", { class: "scroll" }, table),
  );
}

function heading(method, path) {
  return [element("span", { class: `method ${method}` }, method.toUpperCase()), " ", path];
}

function route({ method, path, operation }, api) {
  const article = element("article", { id: operation.operationId });
  article.append(
    element("h3", { class: "path" }, ...heading(method, path)),
    element("p", {}, ...prose([operation.summary, operation.description].filter(Boolean).join(" "))),
  );
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  if (body) article.append(element("h4", {}, "Fields"), fieldTable(resolved(body, api), api));
  article.append(element("h4", {}, "Example"), example(curl(method, path, operation, api)));
  article.append(answers(operation, api));
  return article;
}

function show(api) {
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("about").textContent = api.info.description;
  const all = Object.entries(api.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({
      method,
      path,
      operation: item[method],
    })),
  );
  const main = document.getElementById("content");
  const nav = document.getElementById("routes");
  for (const tag of api.tags) {
    const routes = all.filter(({ operation }) => operation.tags.includes(tag.name));
    const title = element("h2", { id: `tag-${tag.name}` }, tag.name);
    const articles = routes.map((each) => route(each, api));
    main.append(element("section", {}, title, element("p", {}, ...prose(tag.description)), ...articles));
    const links = routes.map(({ method, path, operation }) =>
      element(
        "li",
        {},
        element("a", { href: `#${operation.operationId}`, class: "path" }, ...heading(method, path)),
      ),
    );
    nav.append(element("h2", {}, tag.name), element("ul", {}, ...links));
  }
  document.getElementById("status").remove();
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  const reply = await fetch("/openapi.json");
  if (!reply.ok) throw new Error(`the server answers ${reply.status}`);
  show(await reply.json());
} catch (error) {
  document.getElementById("status").textContent = `openapi.json cannot be read: ${error.message}.`;
}
