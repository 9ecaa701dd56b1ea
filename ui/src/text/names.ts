// Names of functions, callers and rules.

/** `namespace/name` of a SPIFFE ID `…/ns/NAMESPACE/sa/NAME` or an instance; others as they are. */
export function workload(source: string): string {
  const at = source.lastIndexOf("/ns/");
  if (at >= 0) return source.slice(at + "/ns/".length).replace("/sa/", "/");
  // An instance: `namespace/name-00001/1`.
  return source.replace(/^([^/]+\/[^/]+?)(-\d{5,})?\/\d+$/, "$1");
}

/** Namespace and name of `namespace/name`; of other names, such as the path of a file, no namespace. */
export function split(name: string): [namespace: string, name: string] {
  const at = name.indexOf("/");
  return at <= 0 ? ["", name] : [name.slice(0, at), name.slice(at + 1)];
}

/** Whether a flow's source or target is this function, `namespace/name` or `name` of any namespace. */
export function isNamed(name: string, wanted: string): boolean {
  return wanted.includes("/") ? name === wanted : split(name)[1] === wanted;
}
