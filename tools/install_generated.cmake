# Run by `cmake --install`: writes the manual pages and shell completions that the program prints from its own option tables.
#   PROGRAM  the executable    COMMANDS  names of its subcommands    PREFIX  where share/ goes
function(write_output file)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "drawbridge ${ARGN} failed (${status}), so ${file} cannot be written")
  endif()
  message(STATUS "Installing: ${PREFIX}/share/${file}")
  file(WRITE ${PREFIX}/share/${file} "${output}")
endfunction()

write_output(man/man1/drawbridge.1 man)
foreach(command ${COMMANDS})
  write_output(man/man1/drawbridge-${command}.1 man ${command})
endforeach()
write_output(bash-completion/completions/drawbridge completion bash)
write_output(zsh/site-functions/_drawbridge completion zsh)
write_output(fish/vendor_completions.d/drawbridge.fish completion fish)
