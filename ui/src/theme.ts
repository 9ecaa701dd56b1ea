// Light, dark, or as the system.

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "leno-theme";
const THEMES: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(stored());

function stored(): Theme {
  try {
    return THEMES.find((known) => known === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system";
  }
}

export function startTheme(): void {
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
    try {
      localStorage.setItem(KEY, theme.value);
    } catch {
      // Storage may be switched off; then the choice lasts as long as the page.
    }
  });
}
