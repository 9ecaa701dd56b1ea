import { useState } from "preact/hooks";
import { send } from "./api/client";
import { Password } from "./parts/field";
import { Text } from "./parts/text";

/** How to begin a session. */
export function SignIn({ by }: { by: "token" | "command" }) {
  return (
    <main class="sign-in card">
      <h1 id="title" tabIndex={-1}>
        Leno
      </h1>
      {by === "command" ? (
        <p>
          The session is over. <code>leno dashboard</code> prints an address for another one; each address works once.
        </p>
      ) : (
        <TokenForm />
      )}
    </main>
  );
}

function TokenForm() {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    setError("");
    try {
      await send("POST", "session", { token: token.trim() });
      // As on the first visit: nothing is left of an earlier session.
      location.reload();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <p>
        Sign in with a token of the control plane’s API. <code>leno token create --role reader</code> makes one.
      </p>
      <Password label="Token" value={token} onInput={setToken} />
      <button type="submit" class="main" disabled={token.trim() === ""}>
        Sign in
      </button>
      <p role="alert" class={error ? "notice bad" : ""}>
        {error && <Text most={300}>{error}</Text>}
      </p>
    </form>
  );
}
