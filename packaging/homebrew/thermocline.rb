# The formula of a tap. `url` and `sha256` are those of the release's source archive: scripts/fill_manifests.
class Thermocline < Formula
  desc "Language-model engine that computes only the neurons a token needs"
  homepage "@REPOSITORY@"
  url "@REPOSITORY@/archive/refs/tags/v@VERSION@.tar.gz"
  sha256 "@SOURCE_SHA256@"
  license "MIT"

  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args
    system bin/"thermocline", "man", buildpath/"man1"
    man1.install Dir["man1/*.1"]
    generate_completions_from_executable(bin/"thermocline", "completions")
  end

  service do
    run [opt_bin/"thermocline", "serve"]
    keep_alive crashed: true
    log_path var/"log/thermocline.log"
    error_log_path var/"log/thermocline.log"
  end

  test do
    assert_match "Once upon a time", shell_output("#{bin}/thermocline -p 'Once upon a time' -n 4 --no-perf")
  end
end
