import { render } from "preact";
import { startStream } from "./api/stream";
import { App } from "./app";
import { loadMesh, followAlerts } from "./mesh-state";
import { startRouter } from "./router";
import { startTheme } from "./theme";
import "./style/index.css";

startTheme();
startRouter();
startStream();
followAlerts();
// The shell shows why, if there is no answer.
loadMesh().catch(() => undefined);

const page = document.getElementById("page");
if (page) {
  page.replaceChildren();
  render(<App />, page);
}
