#!/usr/bin/env node
// Starts the program in the package of this platform, and ends as the program ends.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const { name, optionalDependencies } = require("../package.json");

function findProgram() {
  const platform = `${name}-${process.platform}-${process.arch}`;
  if (!(platform in optionalDependencies)) {
    const known = Object.keys(optionalDependencies).map((it) => it.slice(name.length + 1));
    throw new Error(
      `there is no Weir for ${process.platform} ${process.arch} yet, only for ${known.join(" and ")}`,
    );
  }
  try {
    return require.resolve(`${platform}/bin/weir`);
  } catch {
    throw new Error(
      `the package ${platform} is missing, which npm leaves out with --omit=optional or a lock file ` +
        `of another platform: install ${name} again without them`,
    );
  }
}

let program;
try {
  program = findProgram();
} catch (error) {
  console.error(`weir: ${error.message}`);
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`weir: ${program}: ${error.message}`);
  process.exit(1);
});
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
  // A terminal sends these two to the program as well, for which a second one means to end at once.
  const fromTerminal = signal !== "SIGTERM" && (process.stdin.isTTY || process.stderr.isTTY);
  process.on(signal, () => fromTerminal || child.kill(signal));
}
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  // If the signal is ignored here.
  setTimeout(() => process.exit(128 + constants.signals[signal]), 100);
});
