// Opens examples/browser.html from an origin of its own and talks; prints what it saw as JSON.
//
//   node embed.mjs '{"url": ..., "chromium": ..., "wav": ...}'

import { chromium } from "playwright-core";

const o = JSON.parse(process.argv[2]);
const browser = await chromium.launch({
  executablePath: o.chromium, headless: true,
  args: [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required", "--allow-loopback-in-peer-connection",
    `--use-file-for-fake-audio-capture=${o.wav}`,
  ],
});
const saw = { errors: [] };
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(30000);
  page.on("pageerror", (error) => saw.errors.push(String(error)));
  page.on("console", (m) => { if (m.type() === "error") saw.errors.push(m.text()); });
  await page.goto(o.url);
  await page.click("#talk");
  await page.waitForFunction(() => document.querySelector("#said").textContent.length > 4);
  saw.said = await page.textContent("#said");
  saw.voice = await page.evaluate(async () => {
    const audio = document.querySelector("#voice");
    return Boolean(audio.srcObject?.getAudioTracks().length) && !audio.paused;
  });
} finally {
  await browser.close();
  console.log(JSON.stringify(saw));
}
