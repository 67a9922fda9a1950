// Requests to the server. A failure is an ApiError with the server's error.

export class ApiError extends Error {
  constructor(status, said) {
    super(said?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.said = said ?? { condition: "", message: this.message };
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, { condition: "UNREACHABLE", message: "The server does not answer." });
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, body?.error);
  return body;
}

export const get = (path, options) => request(path, options);

export const post = (path, body = {}) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** Logs in: the server gives a cookie that scripts can't read. */
export function login(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  const basic = btoa(String.fromCharCode(...bytes));
  return request("/api/login", { method: "POST", headers: { Authorization: `Basic ${basic}` } });
}
