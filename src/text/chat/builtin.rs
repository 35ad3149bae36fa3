//! Built-in templates under llama.cpp's names, for models whose file has none.
//!
//! Each was written from the documented format of its models. A file's own template takes
//! precedence.

/// Name and Jinja source of each template, sorted by name.
const TEMPLATES: [(&str, &str); 13] = [
    (
        "chatml",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    (
        "command-r",
        "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|>' }}\
         {% if m.role == 'system' %}{{ '<|SYSTEM_TOKEN|>' }}{% elif m.role == 'user' %}{{ '<|USER_TOKEN|>' }}\
         {% else %}{{ '<|CHATBOT_TOKEN|>' }}{% endif %}{{ m.content | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    ),
    (
        "deepseek3",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}\
         {% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}\
         {% else %}{{ m.content + '\n\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    ),
    (
        "falcon3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}\
         {% if m.role == 'system' %}{% set ns.system = m.content | trim + '\n\n' %}{% else %}\
         {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}\
         {% if m.role == 'user' %}{{ ns.system }}{% set ns.system = '' %}{% endif %}\
         {{ m.content | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ),
    (
        "llama2",
        "{% set ns = namespace(system='') %}{% for m in messages %}\
         {% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' + m.content + '\n<</SYS>>\n\n' %}\
         {% elif m.role == 'user' %}{{ bos_token + '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}\
         {% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for m in messages %}\
         {{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    (
        "mistral-v1",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}\
         {% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}\
         {% elif m.role == 'user' %}{{ ' [INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}\
         {% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}\
         {% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}\
         {% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + '[/INST]' }}{% set ns.system = '' %}\
         {% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{{ bos_token }}{% for m in messages %}\
         {% if m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}\
         {% elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}\
         {% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
    (
        "vicuna",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n\n' }}\
         {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\n' }}\
         {% else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
];

/// The source of the built-in template called `name`; `None` if no built-in template has this name.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// All names, sorted.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Conversation, Dialogue, Template};

    fn prompt(name: &str) -> String {
        let template = Template::compile(builtin(name).unwrap()).unwrap();
        let mut dialogue = Dialogue::with_template(template);
        dialogue.bos_token = "<s>".into();
        dialogue.eos_token = "</s>".into();
        let mut talk = Conversation::new(Some("Be brief.".into()));
        talk.ask("Hi");
        talk.answer("Hello");
        talk.ask("Bye");
        dialogue.prompt(&talk).unwrap().text
    }

    #[test]
    fn templates_match_their_layouts() {
        for (name, expected) in [
            (
                "chatml",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "llama2",
                "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]",
            ),
            ("mistral-v3", "<s>[INST] Be brief.\n\nHi[/INST] Hello</s>[INST] Bye[/INST]"),
            (
                "phi3",
                "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
            ),
        ] {
            assert_eq!(prompt(name), expected, "{name}");
        }
    }

    #[test]
    fn every_name_has_a_template_that_ends_with_the_models_turn() {
        for name in builtin_names() {
            let text = prompt(name);
            assert!(text.contains("Be brief.") && text.contains("Hello"), "{name}: {text}");
            assert!(!text.trim_end().ends_with("Bye"), "{name}: {text}");
        }
        assert!(builtin_names().is_sorted());
        assert_eq!(builtin("no such"), None);
    }
}
