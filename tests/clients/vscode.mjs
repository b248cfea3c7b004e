// Drive VS Code in a browser: list our models, choose one, ask it, wait for the answer.
// Usage: node vscode.mjs CODE_SERVER_FOLDER CHROMIUM URL QUESTION ANSWER SCREENSHOT
import { createRequire } from "node:module";

const [folder, chromium, url, question, answer, screenshot] = process.argv.slice(2);
// Installed beside code-server, not beside this file.
const playwright = createRequire(`${folder}/package.json`)("playwright-core");
const WAIT = { timeout: 60_000 };

// Commands are registered late, and the list is made once: ask until it is there.
async function command(page, words) {
  for (let tries = 0; tries < 20; tries++) {
    await page.keyboard.press("F1");
    const input = page.locator(".quick-input-widget input").first();
    await input.waitFor(WAIT);
    await input.fill(`>${words}`);
    const found = page.locator(`.quick-input-list [aria-label^="${words}"]`).first();
    try {
      await found.click({ timeout: 3_000 });
      return;
    } catch {
      await page.keyboard.press("Escape");
    }
  }
  throw new Error(`VS Code has no command "${words}"`);
}

const browser = await playwright.chromium.launch({
  executablePath: chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
try {
  await page.goto(url);
  await page.locator(".monaco-workbench").waitFor(WAIT);
  await page.locator(".statusbar-item").first().waitFor(WAIT);
  // Opening this list also starts the chat extension, which sleeps while signed out.
  await command(page, "Chat: Manage Language Models");
  await page.getByText("OFA · HPC").first().waitFor(WAIT);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  const picker = page.locator('.action-label:has-text("OFA · ")').last();
  await picker.click(WAIT);
  await page.getByPlaceholder("Search models").waitFor(WAIT);
  await page.keyboard.type("OFA · HPC", { delay: 30 });
  await page.locator('[aria-label*="OFA · HPC"]').first().waitFor(WAIT);
  await page.keyboard.press("Enter");
  await page.locator('.action-label:has-text("OFA · HPC")').last().waitFor(WAIT);
  await command(page, "Chat: Open Chat (Agent)");
  await page.keyboard.type(question, { delay: 10 });
  await page.keyboard.press("Enter");
  await page.getByText(answer).first().waitFor(WAIT);
} finally {
  await page.screenshot({ path: screenshot });
  await browser.close();
}
