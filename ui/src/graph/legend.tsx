/** What lines and signs mean. */
export function Legend({ chains }: { chains: boolean }) {
  return (
    <ul class="legend" aria-label="Legend">
      <Line kind="good" text="in use" />
      <Line kind="warning" text="some fail or are denied" />
      <Line kind="bad" text="5 % or more fail" />
      <Line kind="unused" text="allowed, unused" />
      <Line kind="refused" text="tried, refused" />
      {chains && <Line kind="good chain" text="chain: shared memory" />}
      <li>
        <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" class="labels">
          <path class="lock" d="M2.5 6h7v5H2.5ZM4 6V4.5a2 2 0 0 1 4 0V6" />
        </svg>
        caller proven (mTLS)
      </li>
    </ul>
  );
}

function Line({ kind, text }: { kind: string; text: string }) {
  return (
    <li>
      <svg viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">
        <g class={`edge ${kind}`}>
          {kind.includes("chain") && <path class="rail" d="M1 6h26" />}
          <path class="line" d="M1 6h26" stroke-width="2" marker-end={`url(#arrow-${kind.split(" ", 1)[0]})`} />
          {kind === "refused" && <path class="cross" d="M9 2l8 8M17 2l-8 8" />}
        </g>
      </svg>
      {text}
    </li>
  );
}
