import { useId, useState } from "preact/hooks";
import { ApiError, type Problem, send } from "../api/client";
import type { Hop, Replay } from "../api/types";
import { Text } from "../parts/text";
import { ReplayResult } from "./replay";

/** Judges recorded requests by an edited policy, in sandboxes of the nodes. It changes nothing. */
export function TryAgain({ document, request }: { document: string; request: Hop }) {
  const [edited, setEdited] = useState<string | null>(null);
  const [state, setState] = useState<"ready" | "busy">("ready");
  const [answer, setAnswer] = useState<Replay | null>(null);
  const [error, setError] = useState<{ message: string; problems: readonly Problem[] } | null>(null);
  const id = useId();
  const text = edited ?? document;
  const run = async () => {
    setState("busy");
    setError(null);
    try {
      const found = await send<Replay | { replay: Replay }>("POST", "api/replay", { documents: text });
      setAnswer("replay" in found ? found.replay : found);
    } catch (failure) {
      setAnswer(null);
      const problems = failure instanceof ApiError ? failure.problems : [];
      setError({ message: failure instanceof Error ? failure.message : String(failure), problems });
    }
    setState("ready");
  };
  return (
    <details class="card try" open={request.judgement?.verdict === "deny"}>
      <summary>Try again against an edited policy</summary>
      <p class="note">Nodes judge their recorded requests by this text, in sandboxes. Nothing is applied.</p>
      <label class="only-heard" for={id}>
        Documents
      </label>
      <textarea
        id={id}
        class="editor"
        rows={14}
        spellcheck={false}
        value={text}
        placeholder="A Policy document in YAML"
        onInput={(event) => setEdited(event.currentTarget.value)}
      />
      <p class="actions">
        <button type="button" class="main" disabled={state === "busy" || text.trim() === ""} onClick={() => void run()}>
          {state === "busy" ? "Judging…" : "Try again"}
        </button>
        {edited !== null && (
          <button type="button" onClick={() => setEdited(null)}>
            Undo the edits
          </button>
        )}
      </p>
      <div aria-live="polite">
        {error && (
          <div class="notice bad">
            <Text most={500}>{error.message}</Text>
            <ul>
              {error.problems.slice(0, 20).map((problem) => (
                <li>
                  Line {problem.line}, <Text>{problem.field}</Text>: <Text most={300}>{problem.message}</Text>{" "}
                  <Text most={300}>{problem.fix}</Text>
                </li>
              ))}
            </ul>
          </div>
        )}
        {answer && <ReplayResult replay={answer} request={request.request_id} />}
      </div>
    </details>
  );
}
