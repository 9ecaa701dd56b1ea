import { effect } from "@preact/signals";
import { render } from "preact";
import { signedOut } from "./api/client";
import { startStream } from "./api/stream";
import { App } from "./app";
import { followAlerts, loadMesh, mesh } from "./mesh-state";
import { startRouter } from "./router";
import { startTheme } from "./theme";
import "./style/index.css";

startTheme();
startRouter();
startStream();
followAlerts();
// The next user of this browser must not find the mesh of the last one: it goes with the document.
effect(() => {
  if (signedOut.value !== null && mesh.peek() !== null) location.reload();
});
// The shell shows why, if there is no answer.
loadMesh().catch(() => undefined);

const page = document.getElementById("page");
if (page) {
  page.replaceChildren();
  render(<App />, page);
}
