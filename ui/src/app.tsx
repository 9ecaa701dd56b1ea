import { useEffect } from "preact/hooks";
import { send, signedOut } from "./api/client";
import { FunctionsView } from "./functions/list";
import { FunctionView } from "./functions/view";
import { GraphView } from "./graph/view";
import { alerts, mesh } from "./mesh-state";
import { AlertsView } from "./mesh/alerts";
import { ChangesView } from "./mesh/changes";
import { EventsView, JobsView } from "./mesh/events";
import { NodesView } from "./mesh/nodes";
import { Choice } from "./parts/field";
import { View } from "./parts/page";
import { Text } from "./parts/text";
import { RequestView } from "./requests/one";
import { RequestsView } from "./requests/tail";
import { link, place } from "./router";
import { SignIn } from "./sign-in";
import { Freshness } from "./freshness";
import { visible } from "./text/safe";
import { theme } from "./theme";

const VIEWS = [
  ["graph", "Graph"],
  ["functions", "Functions"],
  ["requests", "Requests"],
  ["nodes", "Nodes"],
  ["alerts", "Alerts"],
  ["changes", "Changes"],
  ["events", "Events"],
  ["jobs", "Jobs"],
] as const;

const THEMES = [
  ["system", "system"],
  ["light", "light"],
  ["dark", "dark"],
] as const;

export function App() {
  const [view = "graph"] = place.value.segments;
  const path = place.value.segments.slice(0, 3).join("/");
  useEffect(() => {
    const title = VIEWS.find(([key]) => key === view)?.[1] ?? "Leno";
    document.title = mesh.value ? `${title} · ${visible(mesh.value.name, 60)} · Leno` : `${title} · Leno`;
  }, [view, mesh.value]);
  // Another view begins at its heading, for those who hear the page.
  useEffect(() => {
    window.scrollTo(0, 0);
    if (document.activeElement !== document.body) document.getElementById("title")?.focus({ preventScroll: true });
  }, [path]);
  if (signedOut.value !== null) return <SignIn by={signedOut.value} />;
  return (
    <>
      <header class="bar">
        <a class="skip" href={`${location.hash || "#/graph"}`} onClick={skip}>
          Skip to the content
        </a>
        <a class="brand" href={link(["graph"])}>
          <Logo />
          Leno
        </a>
        <span class="mesh">{mesh.value && <Text most={60}>{mesh.value.name}</Text>}</span>
        <Freshness />
        <Choice label="Colours" value={theme.value} options={THEMES} onChange={(chosen) => (theme.value = chosen)} />
        {mesh.value?.sign_out && (
          <button type="button" onClick={() => void signOut()}>
            Sign out
          </button>
        )}
      </header>
      <nav class="views" aria-label="Views">
        {VIEWS.map(([key, title]) => (
          <a href={link([key])} {...(key === view ? { "aria-current": "page" as const } : {})}>
            {title}
            {key === "alerts" && alerts.value !== null && alerts.value.length > 0 && (
              <span class="count">
                {alerts.value.length}
                <span class="only-heard"> open</span>
              </span>
            )}
          </a>
        ))}
      </nav>
      <main id="content">
        <Place />
      </main>
    </>
  );
}

function skip(event: Event) {
  event.preventDefault();
  document.getElementById("title")?.focus();
}

async function signOut() {
  await send("DELETE", "session").catch(() => undefined);
  signedOut.value = "token";
}

function Place() {
  const [view = "graph", first, second] = place.value.segments;
  switch (view) {
    case "graph":
      return <GraphView />;
    case "functions":
      return first && second ? (
        <FunctionView key={`${first}/${second}`} name={`${first}/${second}`} />
      ) : (
        <FunctionsView />
      );
    case "requests":
      return first ? <RequestView key={first} id={first} /> : <RequestsView />;
    case "nodes":
      return <NodesView />;
    case "alerts":
      return <AlertsView />;
    case "changes":
      return <ChangesView />;
    case "events":
      return <EventsView />;
    case "jobs":
      return <JobsView />;
    default:
      return (
        <View title="No such page">
          <p class="empty">
            The <a href={link(["graph"])}>graph</a> is a good place to begin.
          </p>
        </View>
      );
  }
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 16 16" aria-hidden="true">
      <path d="M2 4c6 0 6 8 12 8M2 12c6 0 6-8 12-8" />
    </svg>
  );
}
