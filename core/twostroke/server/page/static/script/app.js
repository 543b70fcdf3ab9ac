// Puts the page together.

import { AskError } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId, nowAndThen, setText } from "./dom.js";
import { Life } from "./life.js";
import { MessageView } from "./message_view.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { initSwitches } from "./switches.js";
import { initWelcome } from "./welcome.js";

let triedKey = null;
const settings = new Settings(() => {
  if (settings.key !== triedKey) models.keyChanged();
  triedKey = settings.key;
});
triedKey = settings.key;

const models = new Models(settings, {
  refused: (error) => settings.askForKey(error.message),
  changed: () => {
    composer.setState({ isRunning: chat.isRunning, canSend: models.canAnswer });
    life.redraw();
  },
});
const life = new Life(() => models.picked);

const chat = new Conversation(
  () => ({ ...settings.all, model: models.picked?.name }),
  (what, answer) => hear(what, answer),
);
const composer = new Composer({ send: (text) => chat.say(text), stop: () => chat.stop() });
const views = new Map(); // of messages that are shown

const showGrowth = nowAndThen(() => showLast(), 60);

function showLast() {
  const last = chat.messages.at(-1);
  if (last?.record) views.get(last)?.draw();
  composer.follow();
}

function hear(what, answer) {
  if (what === "list") showList(answer);
  if (what === "answer" && answer.record === life.record) life.redraw();
  if (what === "answer") showGrowth();
  if (what === "end") ended(answer);
  composer.setState({ isRunning: chat.isRunning, canSend: models.canAnswer });
}

function showList(answer) {
  const list = byId("messages");
  for (const [message, view] of views) {
    if (chat.messages.includes(message)) continue;
    view.element.remove();
    views.delete(message);
  }
  for (const message of chat.messages) {
    if (views.has(message)) continue;
    const view = new MessageView(message, doesOf(message));
    views.set(message, view);
    list.append(view.element);
  }
  byId("welcome").hidden = chat.messages.length > 0;
  life.show(answer?.record ?? null);
  composer.follow(true);
  if (answer) setText(byId("announcer"), "The model is answering.");
}

function doesOf(message) {
  const index = () => chat.messages.indexOf(message);
  return {
    edit: (text) => then(chat.edit(index(), text)),
    again: () => then(chat.again(index())),
    show: () => {
      life.show(message.record);
      switches.show("life");
    },
  };
}

function then(answering) {
  byId("prompt").focus(); // the button that was pressed is gone
  return answering;
}

function ended(answer) {
  const { record } = answer;
  showLast();
  if (record.problem instanceof AskError && record.problem.wantsKey) settings.askForKey(record.problem.message);
  setText(byId("announcer"), record.problem ? "" : `${record.state === "stopped" ? "Stopped" : "Answer"}: ${answer.content}`);
  if (record === life.record) life.draw();
  models.look(); // the memory has changed
}

const switches = initSwitches();
initWelcome(byId("examples"), (text) => composer.fill(text));
byId("new-chat").addEventListener("click", () => {
  chat.clear();
  byId("prompt").focus();
});
life.show(null);
models.look();
