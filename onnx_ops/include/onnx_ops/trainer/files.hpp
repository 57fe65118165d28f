// Files that are read.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "errors.hpp"

namespace onnx_ops::detail {

using Path = std::filesystem::path;

inline FileError file_error(int code, const Path &path) {
  return FileError("[Errno " + std::to_string(code) + "] " + std::strerror(code) + ": '" + path.string() + "'");
}

/// A file that stays open for reading.
class File {
 public:
  explicit File(const Path &path) : path_(path) {
    errno = 0;
    std::error_code found;
    if (std::filesystem::is_directory(path, found)) throw file_error(EISDIR, path);
    stream_.open(path, std::ios::binary | std::ios::ate);
    if (!stream_) throw file_error(errno ? errno : EIO, path);
    size_ = static_cast<std::uint64_t>(stream_.tellg());
  }

  const Path &path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void read_into(std::uint64_t offset, void *memory, std::size_t count) {
    if (count == 0) return;
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(static_cast<char *>(memory), static_cast<std::streamsize>(count));
    if (static_cast<std::size_t>(stream_.gcount()) != count) {
      throw FileError("[Errno " + std::to_string(EIO) + "] the file was shortened while it was read: '" + path_.string() + "'");
    }
  }

  std::string read(std::uint64_t offset, std::size_t count) {
    std::string found(count, '\0');
    read_into(offset, found.data(), count);
    return found;
  }

 private:
  Path path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

}  // namespace onnx_ops::detail
