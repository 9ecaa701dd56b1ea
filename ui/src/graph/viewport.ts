// Zoom and pan: the part of the drawing that is seen.

import type { Point } from "./layout";

export interface Viewport extends Point {
  /** Pixels for a unit of the drawing. */
  scale: number;
}

const SCALES = [0.08, 3] as const;

/** The whole drawing in the middle of the canvas, not larger than it is. */
export function fit(drawing: { width: number; height: number }, canvas: { width: number; height: number }): Viewport {
  const [across, down] = [canvas.width / Math.max(drawing.width, 1), canvas.height / Math.max(drawing.height, 1)];
  const scale = bound(Math.min(across, down, 1));
  return {
    scale,
    x: drawing.width / 2 - canvas.width / 2 / scale,
    y: drawing.height / 2 - canvas.height / 2 / scale,
  };
}

/** Zooms by a factor; the point of the canvas stays where it is. */
export function zoom(viewport: Viewport, factor: number, at: Point): Viewport {
  const scale = bound(viewport.scale * factor);
  const shift = 1 / viewport.scale - 1 / scale;
  return { scale, x: viewport.x + at.x * shift, y: viewport.y + at.y * shift };
}

export function pan(viewport: Viewport, by: Point): Viewport {
  return { ...viewport, x: viewport.x - by.x / viewport.scale, y: viewport.y - by.y / viewport.scale };
}

/** Moves so that a point of the drawing is seen; unchanged if it is. */
export function reveal(viewport: Viewport, point: Point, canvas: { width: number; height: number }): Viewport {
  const at = { x: (point.x - viewport.x) * viewport.scale, y: (point.y - viewport.y) * viewport.scale };
  const margin = 60;
  const isSeen = at.x > margin && at.y > margin && at.x < canvas.width - margin && at.y < canvas.height - margin;
  return isSeen ? viewport : pan(viewport, { x: canvas.width / 2 - at.x, y: canvas.height / 2 - at.y });
}

function bound(scale: number): number {
  return Math.min(SCALES[1], Math.max(SCALES[0], scale));
}
