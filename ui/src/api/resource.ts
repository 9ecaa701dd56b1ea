// Answers that a view asks for again and again while it is shown.

import { useEffect, useState } from "preact/hooks";
import { get } from "./client";

export interface Resource<T> {
  data: T | undefined;
  error: string | undefined;
  reload: () => void;
}

/** Asks now, every `every` seconds while the page is looked at (0: not again), and on `reload`. */
export function useResource<T>(path: string | null, every = 0): Resource<T> {
  const [answer, setAnswer] = useState<{ path: string | null; data?: T; error?: string }>({ path });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const control = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        if (!document.hidden) setAnswer({ path, data: await get<T>(path, control.signal) });
      } catch (error) {
        if (control.signal.aborted) return;
        const reason = error instanceof Error ? error.message : String(error);
        // The last answer stays, with the reason why there is no newer one.
        setAnswer((last) => (last.path === path ? { ...last, error: reason } : { path, error: reason }));
      }
      if (every > 0 && !control.signal.aborted) timer = window.setTimeout(() => void ask(), every * 1000);
    };
    void ask();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [path, every, round]);
  const isOwn = answer.path === path;
  return {
    data: isOwn ? answer.data : undefined,
    error: isOwn ? answer.error : undefined,
    reload: () => setRound((last) => last + 1),
  };
}
