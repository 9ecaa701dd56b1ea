import { useState } from "preact/hooks";

/** Rows of a list that are shown, and the rest. `more` shows as many again. */
export interface Cut<T> {
  shown: readonly T[];
  hidden: number;
  more: () => void;
}

export function useCut<T>(rows: readonly T[], step: number): Cut<T> {
  const [most, setMost] = useState(step);
  return {
    shown: rows.slice(0, most),
    hidden: Math.max(0, rows.length - most),
    more: () => setMost((last) => last + step),
  };
}

interface MoreProps {
  /** Rows that are not shown; `null`: there are some, of unknown number. */
  hidden: number | null;
  onMore: () => void;
  isAsking?: boolean;
}

/** The end of a list that is cut. */
export function More({ hidden, onMore, isAsking = false }: MoreProps) {
  if (hidden === 0) return null;
  return (
    <p class="more note">
      {hidden === null ? "There are earlier ones." : `${hidden} more ${hidden === 1 ? "is" : "are"} not shown.`}{" "}
      <button type="button" disabled={isAsking} onClick={onMore}>
        More
      </button>
    </p>
  );
}

/** The end of a short list in an answer that is cut for good. */
export function Rest({ of, most }: { of: number; most: number }) {
  return of > most ? <span class="note">and {of - most} more</span> : null;
}
