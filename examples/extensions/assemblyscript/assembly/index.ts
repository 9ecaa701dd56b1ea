// Maintenance: whatever the configuration says, everybody is told that, with status 503. With `off`, requests go on and get the
// header `x-maintenance: none`. (An empty configuration is more than this SDK can read.) The extension must be named `maintenance`,
// as the plugin registers itself in the last line.

export * from "@solo-io/proxy-runtime/proxy";
import {
  Context,
  FilterHeadersStatusValues,
  HeaderPair,
  Headers,
  LogLevelValues,
  RootContext,
  log,
  registerRootContext,
  send_local_response,
  stream_context,
  GrpcStatusValues,
} from "@solo-io/proxy-runtime";

class Plugin extends RootContext {
  createContext(context_id: u32): Context {
    return new Request(context_id, this);
  }
}

class Request extends Context {
  constructor(context_id: u32, root: Plugin) {
    super(context_id, root);
  }

  onRequestHeaders(count: u32, end: bool): FilterHeadersStatusValues {
    const message = (this.root_context as Plugin).getConfiguration();
    if (message != "off") {
      log(LogLevelValues.info, "turned away: " + message);
      const headers: Headers = [new HeaderPair(String.UTF8.encode("retry-after"), String.UTF8.encode("60"))];
      send_local_response(503, "maintenance", String.UTF8.encode(message + "\n"), headers, GrpcStatusValues.Unavailable);
      return FilterHeadersStatusValues.StopIteration;
    }
    stream_context.headers.request.replace("x-maintenance", "none");
    return FilterHeadersStatusValues.Continue;
  }
}

registerRootContext((context_id: u32) => new Plugin(context_id), "maintenance");
