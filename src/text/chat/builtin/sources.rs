//! Sources of the built-in templates.

const GRANITE: (&str, &str) = each!(
    "granite",
    "",
    "<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n",
    "<|start_of_role|>assistant<|end_of_role|>"
);

/// Name and Jinja source of each template, sorted by name.
pub(super) const TEMPLATES: [(&str, &str); 54] = [
    each!(
        "bailing",
        "",
        "<role>{{ 'HUMAN' if m.role == 'user' else m.role | upper }}</role>{{ m.content }}",
        "<role>ASSISTANT</role>"
    ),
    each!(
        "bailing-think",
        "",
        "<role>{{ 'HUMAN' if m.role == 'user' else m.role | upper }}</role>{{ m.content }}",
        "<role>ASSISTANT</role><think>"
    ),
    // The authors end every system message with the thinking mode. llama.cpp writes the mode only
    // if there is no system message.
    each!(
        "bailing2",
        "",
        "{% if loop.first %}<role>SYSTEM</role>{{ m.content + '\n' if m.role == 'system' else '' }}\
         detailed thinking off<|role_end|>{% endif %}{% if not loop.first or m.role != 'system' %}\
         <role>{{ 'HUMAN' if m.role == 'user' else m.role | upper }}</role>{{ m.content }}<|role_end|>{% endif %}",
        "<role>ASSISTANT</role>"
    ),
    each!("chatglm3", "[gMASK]sop", "<|{{ m.role }}|>\n {{ m.content }}", "<|assistant|>"),
    each!("chatglm4", "[gMASK]<sop>", "<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>\n"),
    each!(
        "chatml",
        "",
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
        "<|im_start|>assistant\n"
    ),
    roles!(
        "command-r",
        "{{ bos_token }}",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    roles!(
        "deepseek",
        "{{ bos_token }}",
        "{{ m.content }}",
        "### Instruction:\n{{ m.content }}\n",
        "### Response:\n{{ m.content }}\n<|EOT|>\n",
        "### Response:\n"
    ),
    each!("deepseek-ocr", "{{ bos_token }}", "{{ m.content }}", ""),
    roles!(
        "deepseek2",
        "{{ bos_token }}",
        "{{ m.content }}\n\n",
        "User: {{ m.content }}\n\n",
        "Assistant: {{ m.content }}{{ eos_token }}",
        "Assistant:"
    ),
    // llama.cpp adds two newlines after the system message; the authors' template does not.
    roles!(
        "deepseek3",
        "{{ bos_token }}",
        "{{ m.content }}",
        "<｜User｜>{{ m.content }}",
        "<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>",
        "<｜Assistant｜>"
    ),
    each!(
        "exaone-moe",
        "",
        "<|{{ m.role }}|>\n{{ m.content | trim }}<|endofturn|>\n",
        "<|assistant|>\n"
    ),
    // The authors keep surrounding whitespace and begin with a system message, empty or not.
    each!(
        "exaone3",
        "",
        "{% if loop.first and m.role != 'system' %}[|system|][|endofturn|]\n{% endif %}\
         [|{{ m.role }}|]{{ m.content }}{{ '' if m.role == 'user' else '[|endofturn|]' }}\n",
        "[|assistant|]"
    ),
    // llama.cpp uses the form of EXAONE 3. This is the authors', with empty reasoning in answers.
    each!(
        "exaone4",
        "",
        "[|{{ m.role }}|]\n{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' else '' }}\
         {{ m.content }}[|endofturn|]\n",
        "[|assistant|]\n<think>\n{{ '' if enable_thinking else '\n</think>\n\n' }}"
    ),
    each!("falcon3", "", "<|{{ m.role }}|>\n{{ m.content }}\n", "<|assistant|>\n"),
    merged!(
        "gemma",
        "{{ bos_token }}",
        "m.content | trim + '\n\n'",
        "<start_of_turn>user\n{{ ns.system }}{{ m.content | trim }}<end_of_turn>\n",
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n",
        "<start_of_turn>model\n"
    ),
    roles!(
        "gigachat",
        "{{ bos_token }}",
        "{{ m.content }}<|message_sep|>",
        "user<|role_sep|>{{ m.content }}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
        "assistant<|role_sep|>{{ m.content }}<|message_sep|>",
        "assistant<|role_sep|>"
    ),
    each!("glmedge", "", "<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>"),
    // llama.cpp writes neither channels nor the system message that lists them. Instructions go
    // into a developer message, and only a last answer ends with `<|return|>`.
    roles!(
        "gpt-oss",
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
         Knowledge cutoff: 2024-06\nCurrent date: {{ strftime_now('%Y-%m-%d') }}\n\n\
         Reasoning: {{ reasoning_effort | default('medium') }}\n\n\
         # Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>",
        "<|start|>developer<|message|># Instructions\n\n{{ m.content }}\n\n<|end|>",
        "<|start|>user<|message|>{{ m.content }}<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{{ m.content }}\
         {{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}",
        "<|start|>assistant"
    ),
    GRANITE,
    ("granite-4.0", GRANITE.1),
    ("granite-4.1", GRANITE.1),
    roles!(
        "grok-2",
        "",
        "System: {{ m.content | trim }}<|separator|>\n\n",
        "Human: {{ m.content | trim }}<|separator|>\n\n",
        "Assistant: {{ m.content }}<|separator|>\n\n",
        "Assistant:"
    ),
    // llama.cpp writes `<｜hy_Assistant｜>` both after a question and before its answer.
    roles!(
        "hunyuan-dense",
        "<｜hy_begin▁of▁sentence｜>",
        "{{ m.content }}<｜hy_place▁holder▁no▁3｜>",
        "<｜hy_User｜>{{ m.content }}",
        "<｜hy_Assistant｜>{{ m.content }}<｜hy_place▁holder▁no▁2｜>",
        "<｜hy_Assistant｜>"
    ),
    // llama.cpp writes `<|startoftext|>` again between a system message and the first question.
    roles!(
        "hunyuan-moe",
        "",
        "<|startoftext|>{{ m.content }}<|extra_4|>",
        "{{ '' if loop.index0 == 1 and messages[0].role == 'system' else '<|startoftext|>' }}\
         {{ m.content }}<|extra_0|>",
        "{{ m.content }}<|eos|>",
        ""
    ),
    roles!(
        "hunyuan-vl",
        "<｜hy_begin▁of▁sentence｜>",
        "{{ m.content }}<｜hy_place▁holder▁no▁3｜>",
        "{{ m.content }}<｜hy_User｜>",
        "{{ m.content }}<｜hy_Assistant｜>",
        ""
    ),
    each!(
        "kimi-k2",
        "",
        "<|im_{{ m.role if m.role in ['user', 'assistant'] else 'system' }}|>{{ m.role }}<|im_middle|>\
         {{ m.content }}<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>"
    ),
    // The published templates of Llama 2 and its variants put spaces around answers; llama.cpp does
    // not. Its `llama2` is the form of early Mistral models, without `<<SYS>>`.
    merged!(
        "llama2",
        "",
        "'<<SYS>>\n' + m.content + '\n<</SYS>>\n\n'",
        "{{ bos_token }}[INST] {{ (ns.system + m.content) | trim }} [/INST]",
        " {{ m.content | trim }} {{ eos_token }}",
        ""
    ),
    merged!(
        "llama2-sys",
        "{{ bos_token }}",
        "'<<SYS>>\n' + m.content + '\n<</SYS>>\n\n'",
        "[INST] {{ ns.system }}{{ m.content }} [/INST]",
        " {{ m.content }} {{ eos_token }}",
        ""
    ),
    merged!(
        "llama2-sys-bos",
        "",
        "'<<SYS>>\n' + m.content + '\n<</SYS>>\n\n'",
        "{{ bos_token }}[INST] {{ ns.system }}{{ m.content }} [/INST]",
        " {{ m.content }} {{ eos_token }}",
        ""
    ),
    merged!(
        "llama2-sys-strip",
        "{{ bos_token }}",
        "'<<SYS>>\n' + m.content + '\n<</SYS>>\n\n'",
        "[INST] {{ (ns.system + m.content) | trim }} [/INST]",
        " {{ m.content | trim }} {{ eos_token }}",
        ""
    ),
    each!(
        "llama3",
        "{{ bos_token }}",
        "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    each!(
        "llama4",
        "{{ bos_token }}",
        "<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content | trim }}<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n"
    ),
    each!(
        "megrez",
        "",
        "<|role_start|>{{ m.role }}<|role_end|>{{ m.content }}<|turn_end|>",
        "<|role_start|>assistant<|role_end|>"
    ),
    each!(
        "minicpm",
        "",
        "{{ '<用户>' + m.content | trim + '<AI>' if m.role == 'user' else m.content | trim }}",
        ""
    ),
    merged!(
        "mistral-v1",
        "{{ bos_token }}",
        "m.content + '\n\n'",
        " [INST] {{ ns.system }}{{ m.content }} [/INST]",
        " {{ m.content }}{{ eos_token }}",
        ""
    ),
    // The authors' templates for v3 put the system message into the last question, so that nothing
    // before it could be reused; the first one is used here, as in llama.cpp.
    merged!(
        "mistral-v3",
        "{{ bos_token }}",
        "m.content + '\n\n'",
        "[INST] {{ ns.system }}{{ m.content }}[/INST]",
        " {{ m.content | trim }}{{ eos_token }}",
        ""
    ),
    merged!(
        "mistral-v3-tekken",
        "{{ bos_token }}",
        "m.content + '\n\n'",
        "[INST]{{ ns.system }}{{ m.content }}[/INST]",
        "{{ m.content }}{{ eos_token }}",
        ""
    ),
    roles!(
        "mistral-v7",
        "{{ bos_token }}",
        "[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]",
        "[INST] {{ m.content }}[/INST]",
        " {{ m.content }}{{ eos_token }}",
        ""
    ),
    roles!(
        "mistral-v7-tekken",
        "{{ bos_token }}",
        "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]",
        "[INST]{{ m.content }}[/INST]",
        "{{ m.content }}{{ eos_token }}",
        ""
    ),
    each!(
        "monarch",
        "",
        "{{ bos_token }}{{ m.role }}\n{{ m.content }}{{ eos_token }}\n",
        "{{ bos_token }}assistant\n"
    ),
    // The published template writes a role before the system message; its authors advise against
    // that, and llama.cpp follows them.
    each!(
        "openchat",
        "{{ bos_token }}",
        "{{ '' if m.role == 'system' else 'GPT4 Correct ' + m.role | capitalize + ': ' }}\
         {{ m.content }}<|end_of_turn|>",
        "GPT4 Correct Assistant:"
    ),
    merged!(
        "orion",
        "{{ bos_token }}",
        "m.content + '\n\n'",
        "Human: {{ ns.system }}{{ m.content }}\n\nAssistant: {{ eos_token }}",
        "{{ m.content }}{{ eos_token }}",
        ""
    ),
    each!(
        "pangu-embedded",
        "{{ bos_token }}",
        "{% if loop.first and m.role != 'system' %}[unused9]系统：[unused10]{% endif %}[unused9]\
         {{ {'system': '系统', 'user': '用户', 'assistant': '助手', 'tool': '工具', 'function': '方法'}[m.role] }}\
         ：{{ m.content }}[unused10]",
        "[unused9]助手："
    ),
    each!("phi3", "", "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n", "<|assistant|>\n"),
    each!(
        "phi4",
        "",
        "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>",
        "<|im_start|>assistant<|im_sep|>"
    ),
    roles!(
        "rwkv-world",
        "{{ bos_token }}",
        "System: {{ m.content | trim }}\n\n",
        "User: {{ m.content | trim }}\n\n",
        "Assistant: {{ m.content | trim }}\n\n",
        "Assistant:"
    ),
    each!(
        "seed_oss",
        "",
        "<seed:bos>{{ m.role }}\n{{ m.content | trim if m.role == 'assistant' else m.content }}<seed:eos>",
        "<seed:bos>assistant\n"
    ),
    // llama.cpp ends a system message with two newlines, the authors as any other message.
    each!(
        "smolvlm",
        "<|im_start|>",
        "{{ m.role | capitalize }}: {{ m.content }}<end_of_utterance>\n",
        "Assistant:"
    ),
    // The authors have a heading over the user's system message.
    each!(
        "solar-open",
        "",
        "<|begin|>{{ m.role }}<|content|>{{ '## System Prompt\n\n' if m.role == 'system' else '' }}\
         {{ m.content }}<|end|>",
        "<|begin|>assistant"
    ),
    // As in FastChat, the authors' program: spaces where llama.cpp has newlines.
    roles!(
        "vicuna",
        "{{ bos_token }}",
        "{{ m.content }} ",
        "USER: {{ m.content }} ",
        "ASSISTANT: {{ m.content }}{{ eos_token }}",
        "ASSISTANT:"
    ),
    roles!(
        "vicuna-orca",
        "{{ bos_token }}",
        "SYSTEM: {{ m.content }}\n",
        "USER: {{ m.content }}\n",
        "ASSISTANT: {{ m.content }}{{ eos_token }}\n",
        "ASSISTANT:"
    ),
    // The models have no form for a system message. llama.cpp drops it.
    merged!(
        "yandex",
        "{{ bos_token }}",
        "m.content + '\n\n'",
        " Пользователь: {{ ns.system }}{{ m.content }}\n\n",
        " Ассистент: {{ m.content }}\n\n",
        " Ассистент:[SEP]"
    ),
    each!("zephyr", "", "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n", "<|assistant|>\n"),
];
