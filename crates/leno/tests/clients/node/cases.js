// What both clients share.
import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';

// Milliseconds. A case that takes longer hangs. The change lasts as long as the test wants.
export const limit = 60_000;

// Between the calls during a change, so that clients do not take the processors from what changes.
const pause = 2;

// Runs the cases one after the other, and ends the process at the first that fails.
export async function run(cases) {
  for (const [name, test] of Object.entries(cases)) {
    const hang = () => { console.error(`${name}: it hangs`); process.exit(1); };
    const hangs = name === 'change' ? undefined : setTimeout(hang, limit);
    try {
      await test();
    } catch (error) {
      console.error(`${name}:`, error);
      process.exit(1);
    }
    clearTimeout(hangs);
    console.log('passed', name);
  }
}

// Calls again and again while the function's instances are replaced, until a line of input comes.
export async function change(version) {
  let stop = false;
  const input = createInterface({ input: process.stdin });
  input.once('line', () => { stop = true; input.close(); });
  const versions = new Set([await version()]);
  console.log('steady');
  while (!stop) {
    versions.add(await version());
    await new Promise((resolve) => { setTimeout(resolve, pause); });
  }
  assert.equal(versions.size, 2, [...versions].join());
}
