// Figures and times in words.

/** A figure with at most three digits. */
export function figure(value: number): string {
  if (value === 0) return "0";
  if (value >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (value >= 1e4) return `${trimmed(value / 1e3)}k`;
  if (value >= 100) return String(Math.round(value));
  return value >= 0.01 ? trimmed(value) : "<0.01";
}

/** At most three digits, without zeros at the end. */
function trimmed(value: number): string {
  return String(Number(value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)));
}

/** Requests a second, or since the nodes started. */
export function rate(value: number, window: number): string {
  return window > 0 ? `${figure(value)}/s` : figure(value);
}

/** The time that rates are of. */
export function period(window: number): string {
  return window > 0 ? `last ${span(window)}` : "since the start";
}

/** A share in percent. Only all is 100 %. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return "–";
  if (share === 1 || share === 0) return `${share * 100} %`;
  const digits = share > 0.999 || share < 0.001 ? 2 : share > 0.99 || share < 0.1 ? 1 : 0;
  const text = (share * 100).toFixed(digits);
  return `${Number(text) >= 100 ? "99.99" : Number(text) <= 0 ? "0.01" : text} %`;
}

/** A duration in milliseconds. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${Math.max(1, Math.round(ms * 1000))} µs`;
  if (ms < 10) return `${trimmed(ms)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${trimmed(ms / 1000)} s` : `${trimmed(ms / 60_000)} min`;
}

export function micros(us: number): string {
  return us < 1000 ? `${trimmed(us)} µs` : duration(us / 1000);
}

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${trimmed(count)} ${units[unit]}`;
}

/** Time between two moments, in its largest unit; moments in seconds since 1970. */
export function span(seconds: number): string {
  const long = Math.abs(seconds);
  if (long < 60) return `${Math.round(long)} s`;
  if (long < 3600) return `${Math.round(long / 60)} min`;
  if (long < 48 * 3600) return `${Math.round(long / 3600)} h`;
  return `${Math.round(long / 86_400)} days`;
}

/** `5 min ago`, `in 3 days`. */
export function relative(at: number, now = Date.now() / 1000): string {
  const ago = now - at;
  if (Math.abs(ago) < 1) return "now";
  return ago > 0 ? `${span(ago)} ago` : `in ${span(ago)}`;
}

/** The clock's time of the viewer, with milliseconds; of an RFC 3339 time or seconds since 1970. */
export function clock(time: string | number, withMillis = true): string {
  const date = new Date(typeof time === "number" ? time * 1000 : time);
  if (Number.isNaN(date.getTime())) return "–";
  const two = (part: number) => String(part).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMillis ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** Date and time of the viewer. */
export function moment(seconds: number): string {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "–" : `${date.toLocaleDateString()} ${clock(seconds, false)}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}
