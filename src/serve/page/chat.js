// Generates answers: request, stream, stop. A conversation has at most one running answer, which
// continues while another conversation is shown.

import { chat } from "./api.js";
import { addMessage, requestMessages } from "./tree.js";

/** Time between two saves of an answer that is being written, in milliseconds. */
const SAVE_EVERY = 1000;

/** Running answers by conversation id. */
const running = new Map();

export function runningIn(conversation) {
  return running.get(conversation.id) ?? null;
}

export function isRunning(message) {
  for (const job of running.values()) if (job.message === message) return true;
  return false;
}

/** Stops the answer of a conversation. The text so far stays. */
export function stop(conversation) {
  running.get(conversation.id)?.controller.abort();
}

/**
 * Answers `question` with a new message below it. `report.started(message)` is called first,
 * `report.changed(message)` at most once per frame, `report.save()` periodically, `report.ended(message)` last.
 */
export async function answer(conversation, question, { model, parameters }, report) {
  const message = addMessage(conversation, question.id, {
    role: "assistant",
    content: "",
    reasoning: "",
    model,
    finish: "partial",
  });
  const controller = new AbortController();
  running.set(conversation.id, { message, controller });
  report.started(message);
  let frame = 0;
  let saved = Date.now();
  const changed = () => {
    if (frame === 0) {
      frame = requestAnimationFrame(() => {
        frame = 0;
        report.changed(message);
      });
    }
    if (Date.now() - saved > SAVE_EVERY) {
      saved = Date.now();
      report.save();
    }
  };
  const body = { ...parameters, model, messages: requestMessages(conversation, question) };
  try {
    await chat(body, controller.signal, (chunk) => {
      addChunk(message, chunk);
      changed();
    });
  } catch (error) {
    if (controller.signal.aborted) message.finish = "stopped";
    else {
      message.finish = "error";
      message.error = error.message;
    }
  }
  cancelAnimationFrame(frame);
  if (message.finish === "partial") {
    message.finish = "error";
    message.error = "The connection ended before the answer was complete.";
  }
  delete message.progress;
  conversation.updated = Date.now();
  running.delete(conversation.id);
  report.ended(message);
}

function addChunk(message, chunk) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta;
  if (typeof delta?.content === "string") message.content += delta.content;
  const reasoning = delta?.reasoning_content ?? delta?.reasoning;
  if (typeof reasoning === "string") message.reasoning += reasoning;
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.timings) message.timings = chunk.timings;
  if (chunk.prompt_progress) message.progress = chunk.prompt_progress;
}
