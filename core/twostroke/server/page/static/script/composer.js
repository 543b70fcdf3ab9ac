// Where messages are written, and the conversation's scrolling along with what is written.

import { byId } from "./dom.js";

const NEAR_PX = 80; // so near to its end the conversation follows what is written

export class Composer {
  /** `send(text)` and `stop()` are called for what people do. */
  constructor({ send, stop }) {
    this.field = byId("prompt");
    this.scroll = byId("scroll");
    this.isRunning = false;
    this.canSend = false;
    this.isFollowing = true;
    const submit = () => {
      const text = this.field.value.trim();
      if (!text || this.isRunning || !this.canSend) return;
      this.fill("");
      send(text);
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    byId("stop").addEventListener("click", () => {
      stop();
      this.field.focus();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    this.field.addEventListener("input", () => this.#fit());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isRunning && !document.querySelector("dialog[open]")) stop();
    });
    this.scroll.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.scroll;
      this.isFollowing = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    });
  }

  /** Puts a text into the field, ready to be sent. */
  fill(text) {
    this.field.value = text;
    this.#fit();
    this.field.focus();
  }

  setState({ isRunning, canSend }) {
    this.isRunning = isRunning;
    this.canSend = canSend;
    const hadFocus = document.activeElement === byId("send");
    byId("send").hidden = isRunning;
    byId("send").disabled = !canSend;
    byId("stop").hidden = !isRunning;
    if (hadFocus && isRunning) byId("stop").focus();
  }

  /** Scrolls to the end, unless people have gone back to read; `always` does it anyway. */
  follow(always = false) {
    if (always) this.isFollowing = true;
    if (this.isFollowing) this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, window.innerHeight * 0.4)}px`;
  }
}
