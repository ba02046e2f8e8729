// Makes the suite wait four times as long where it waits for 0.2 to 2 s.
//
//   node --import patience.mjs SUITE
//
// Its scenarios for servers end their streams after such a time, and judge what has come until then. All that a
// check then says of a machine that stood still meanwhile is how long it stood.

const { setTimeout } = globalThis;
const isShort = ms => ms >= 200 && ms <= 2000;

globalThis.setTimeout = (work, ms, ...given) => setTimeout(work, isShort(ms) ? 4 * ms : ms, ...given);
