//! Images, sounds and files within a prompt, as the content blocks that the protocol has for them.
//!
//! They hold no arguments, so a block is rendered once, when the folder is read.
//! Knows nothing of: where the bytes come from.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// What a file becomes in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Image,
    Audio,
    Resource,
}

/// Renders the bytes of the file at `path` as a content block; `library` names the folder.
pub(super) fn render(
    form: Form,
    library: &str,
    path: &str,
    bytes: Vec<u8>,
) -> Result<Box<RawValue>, String> {
    let block = match form {
        Form::Image => {
            Block::Image { data: BASE64_STANDARD.encode(&bytes), mime_type: known(path, form)? }
        }
        Form::Audio => {
            Block::Audio { data: BASE64_STANDARD.encode(&bytes), mime_type: known(path, form)? }
        }
        Form::Resource => {
            let uri = uri(library, path);
            let mime_type = mime_type(path);
            let resource = match String::from_utf8(bytes) {
                Ok(text) => {
                    Resource::Text { uri, mime_type: mime_type.unwrap_or("text/plain"), text }
                }
                Err(not_text) => Resource::Blob {
                    uri,
                    mime_type: mime_type.unwrap_or("application/octet-stream"),
                    blob: BASE64_STANDARD.encode(not_text.as_bytes()),
                },
            };
            Block::Resource { resource }
        }
    };
    to_raw_value(&block).map_err(|error| format!("`{path}`: {error}"))
}

/// Whether a link to this file is one to a sound.
pub(super) fn is_audio(path: &str) -> bool {
    mime_type(path).is_some_and(|mime_type| mime_type.starts_with("audio/"))
}

fn known(path: &str, form: Form) -> Result<&'static str, String> {
    let (family, word) =
        if form == Form::Image { ("image/", "an image") } else { ("audio/", "a sound") };
    mime_type(path)
        .filter(|mime_type| mime_type.starts_with(family))
        .ok_or_else(|| format!("`{path}` does not have the extension of {word} (embed it with `<!-- embed: … -->` if it is another file)"))
}

/// A URI of its own scheme: one with `file:` would tell clients where the folder lies, and invite
/// them to look for it on their own disk.
fn uri(library: &str, path: &str) -> String {
    let mut uri = String::from("prompt-library://");
    push_encoded(&mut uri, library);
    for segment in path.split('/').filter(|segment| !matches!(*segment, "" | ".")) {
        uri.push('/');
        push_encoded(&mut uri, segment);
    }
    uri
}

fn push_encoded(uri: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn mime_type(path: &str) -> Option<&'static str> {
    let extension = path.rsplit_once('.')?.1.to_ascii_lowercase();
    MIME_TYPES.iter().find(|(known, _)| *known == extension).map(|(_, mime_type)| *mime_type)
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Block {
    Image {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
    },
    Audio {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
    },
    Resource {
        resource: Resource,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Resource {
    Text {
        uri: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
        text: String,
    },
    Blob {
        uri: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
        blob: String,
    },
}

/// By extension, since that is what the writer chose; what is not here is plain text or plain bytes.
const MIME_TYPES: [(&str, &str); 37] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("svg", "image/svg+xml"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("m4a", "audio/mp4"),
    ("aac", "audio/aac"),
    ("flac", "audio/flac"),
    ("weba", "audio/webm"),
    ("md", "text/markdown"),
    ("markdown", "text/markdown"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("js", "text/javascript"),
    ("mjs", "text/javascript"),
    ("ts", "text/x-typescript"),
    ("rs", "text/x-rust"),
    ("py", "text/x-python"),
    ("go", "text/x-go"),
    ("java", "text/x-java"),
    ("c", "text/x-c"),
    ("sh", "text/x-shellscript"),
    ("json", "application/json"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    ("pdf", "application/pdf"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(form: Form, path: &str, bytes: &[u8], expected: Result<&str, &str>) {
        let rendered = render(form, "team prompts", path, bytes.to_vec());
        assert_eq!(rendered.as_ref().map(|block| block.get()).map_err(String::as_str), expected);
    }

    #[test]
    fn each_form_is_the_content_block_of_the_protocol() {
        check(
            Form::Image,
            "a.PNG",
            b"\x89PNG",
            Ok(r#"{"type":"image","data":"iVBORw==","mimeType":"image/png"}"#),
        );
        check(
            Form::Audio,
            "a.mp3",
            b"ID3",
            Ok(r#"{"type":"audio","data":"SUQz","mimeType":"audio/mpeg"}"#),
        );
        check(
            Form::Resource,
            "./docs/a b.md",
            b"# A",
            Ok(
                r##"{"type":"resource","resource":{"uri":"prompt-library://team%20prompts/docs/a%20b.md","mimeType":"text/markdown","text":"# A"}}"##,
            ),
        );
        check(
            Form::Resource,
            "a.bin",
            b"\xff\x00",
            Ok(
                r#"{"type":"resource","resource":{"uri":"prompt-library://team%20prompts/a.bin","mimeType":"application/octet-stream","blob":"/wA="}}"#,
            ),
        );
    }

    #[test]
    fn the_extensions_that_are_told_are_images_and_sounds() {
        let page = include_str!("../../../docs/prompt-library.md");
        let row = |start: &str| {
            let row = page.lines().find_map(|line| line.split_once(start)).expect(start).1;
            row.trim_matches([' ', '|']).split(", ").collect::<Vec<_>>()
        };
        for (form, start) in [(Form::Image, "| image: "), (Form::Audio, "| audio: ")] {
            for extension in row(start) {
                let path = format!("a.{extension}");
                assert!(render(form, "p", &path, Vec::new()).is_ok(), "{path}");
            }
        }
    }

    #[test]
    fn a_file_that_is_no_image_is_not_sent_as_one() {
        check(
            Form::Image,
            "a.txt",
            b"",
            Err(
                "`a.txt` does not have the extension of an image (embed it with `<!-- embed: … -->` if it is another file)",
            ),
        );
    }
}
