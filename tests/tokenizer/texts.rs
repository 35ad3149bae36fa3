//! Random texts in every script, with content that is difficult for tokenizers.

use proptest::prelude::*;

/// Texts of up to 11 random pieces.
pub(super) fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-zA-Z']{1,6}",
        "'(s|t|re|VE|m|Ll|d|ſ)",
        "[ \t\r\n\u{b}\u{c}\u{85}\u{a0}\u{2003}\u{2028}\u{3000}]{1,4}",
        " {1,9}",
        "\n{1,4}",
        "[0-9²½٣四Ⅷ]{1,7}",
        "[!-/:-@\\[-`{-~]{1,4}",
        "[中文漢字龥豈のカ한글ㄅ]{1,4}",
        "[éÉßǅΩжДאبिกሀ]{1,4}",
        "[\u{300}-\u{36f}\u{200d}\u{fe0f}\u{1f3fd}]{1,3}",
        "[🦙👩🚀🇩🇪👨]{1,3}",
        "[“”…，。！～€©\u{ad}\u{200b}]{1,3}",
        "<0x0A>|</s>|<\\|endoftext\\|>|<s>|▁",
        "\\PC{1,3}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}
